// Package secrets runs a cluster of real processes as an operator would, uses every kind of secret that there is, rightly and
// wrongly, and then looks for them in everything that came out of it: logs, spans, metrics, answers and errors, the list of
// processes, the log of PostgreSQL, what went over NATS, and the rows of every database (AUT-2).
//
// A secret is looked for as it is and as it is written in URLs, JSON, hexadecimal digits and base64, also in the middle of
// something longer.
package secrets
