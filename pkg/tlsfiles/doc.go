// Package tlsfiles speaks TLS by files that are read again when they change (AUT-10): a certificate with its key, which a
// process shows as server and as client, the authorities by which it knows its callers, and those by which it knows whom
// it calls.
//
//	files, err := tlsfiles.Open(tlsfiles.Config{Certificate: "/tls/tls.crt", Key: "/tls/tls.key", ClientCA: "/tls/ca.crt"})
//	server := &http.Server{TLSConfig: files.Server()}
//
// What it guarantees:
//
//   - A connection that is made a second after the files have changed goes by the new ones. Connections that stand are left
//     alone. The files are looked at when a connection is made, at most once a second; there is no goroutine.
//   - Files that are not right, such as a certificate whose key is still the old one, change nothing: the last right ones
//     stay in use, which is logged once and counted until it is mended.
//   - At the start, everything that is wrong with the files is told at once, and nothing is served.
package tlsfiles
