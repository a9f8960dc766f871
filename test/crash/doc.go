// Package crash shows that killing any process at any instant loses nothing that
// was acknowledged (ARC-3, ENG-23). While instances of a workflow with forks, loops
// and timers run over two shards, a random one of instances process, router, worker
// and PostgreSQL server is killed (SIGKILL) again and again, and comes back a
// little later. In the end every instance must have completed with the context that
// the test computes by itself, and the histories must agree with what workers and
// starters were told (package ledger).
//
// Set in the environment: WIGGLE_CRASH_KILLS (8; `make crash` kills 50 times),
// WIGGLE_CRASH_INSTANCES (20 for each kill, at least 200), WIGGLE_CRASH_SEED (drawn
// and printed; the same seed kills the same victims in the same order, with the same
// pauses between them).
package crash
