// Package archtest keeps the architecture by a test: who may import whom, what a pure package may not do, and the few
// habits of the style guide that a linter does not know. rules.go is the table of it all, with a reason per rule and per
// exception.
//
// The checks read the source of the four workspace modules as text (go/parser), so they take about a second, see every
// platform's files, and judge a package that does not compile yet. What a package reaches is followed through the
// repository's own packages and ends at the first one from outside.
package archtest
