// Package devstack runs a PostgreSQL server of our own for `wiggle dev`, the bench and the tests (OPS-1), on a machine
// where nothing is prepared.
//
// Where the programs come from, first that works: WIGGLE_POSTGRES_BIN, PATH, pg_config, the usual directories (newest
// first); with [Provide] also the system's package manager (as root on Debian, Ubuntu, Alpine and Fedora, where that can be
// done without asking; no server of the system's is left running), then a download by the embedded-postgres library, once,
// into a cache. When nothing works one error says what to run.
//
// What a [Server] guarantees:
//
//   - it never outlives this process: Ctrl-C reaches it only through us (own process group), and should we be killed,
//     the kernel (Linux: parent death signal) or a watchdog (elsewhere) shuts it down at once;
//   - as root it runs under an unprivileged account: postgres if there is one, else nobody. None is created;
//   - it listens on a Unix socket in a directory that only its account and root can enter and, if asked, on 127.0.0.1.
//     Both without passwords: this is for development, not for keeping secrets from local users;
//   - its data directory is either complete or absent: a killed initdb leaves nothing that looks like one;
//   - a postmaster.pid left by a killed run is cleared away, one of a live server is an error that names it.
//
// Data of a [Durable] server survives like that of any PostgreSQL. A [Throwaway] server does not flush; its data is
// lost with the machine, and that makes tests faster.
//
// As root the data directory must be one that the unprivileged account can reach: below /root (mode 0700) it cannot,
// which is an error that says so. [DefaultDataDir] is one that works.
package devstack
