// Package pgtest gives tests databases on a real PostgreSQL server.
//
// One server serves a whole run: `go run ./internal/pgtest/cmd/pgtestd -- go test ./...` starts it and names it in
// WIGGLE_TEST_POSTGRES_URL for every test binary. Without that variable each test binary starts a server of its own
// when its first test asks for a database; it ends with the binary in any case (see internal/devstack), and at once
// where TestMain is [Main]:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
// Every test has databases of its own, so tests run in parallel. The server does not flush (devstack.Throwaway); a test of
// durability needs a server of its own from devstack.
package pgtest
