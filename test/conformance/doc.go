// Package conformance holds the engine to its specification by scenarios: a
// definition, inputs, what workers answer, and what must be seen. Every scenario
// runs unchanged on each configuration: the in-memory test server, one shard and
// two shards on PostgreSQL, served by one process or by two (SHD-38). With the race
// detector it is the test server and two processes; `make conformance` plays all.
//
// A scenario speaks the worker protocol itself, by the generated clients, so that
// it can be late, repeat itself, lie and keep silent. Most scenarios only say what
// a step answers; those that are about order or trouble have a script. None knows
// where it runs: what it waits for comes by a clock that is moved or by one that
// goes, and [Run.Task] and [Run.Work] let either pass.
//
// Scenarios stand in files by theme, <theme>_scenarios.go, and are listed in
// [Scenarios]. Beside them a property test plays random definitions with a worker
// that repeats and reorders what it says, and wants the same end everywhere.
package conformance
