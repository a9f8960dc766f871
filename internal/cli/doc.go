// Package cli is the command line, wiggle: dev and serve run Wiggle; migrate, topology and ids serve its operators;
// register, start, get, list, count, cancel, workflows and shards talk to a router, and so do the families accounts, search,
// events and schedules. Families have packages of their own, which reach the program by package shell.
//
// What holds for every command:
//
//   - Human text by default; with -o json exactly one JSON document on standard output, and nothing else there.
//   - Errors go to standard error: a line that names the thing and the way out, or with -o json {"error": {...}}.
//   - The exit codes are those of `wiggle help exit-codes`, which scripts may rely on.
//
// [Run] takes everything that a command touches of its process as a [Program], so that tests run commands in process.
package cli
