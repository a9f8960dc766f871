// Package clients holds the clients that are not ours to what they say: examples/typescript does a step of the demo's
// process beside the Go workers, and every command of docs/clients.md answers what stands there. Callers are checked, as in
// production: keys are made as the pages say, may do what they need and nothing else, and without one nothing works. Its tests need
// Node, curl and jq, and are behind the tag clients: `make test-clients` installs what is missing.
package clients
