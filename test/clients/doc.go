// Package clients holds the clients that are not ours to what they say: examples/typescript does a step of the demo's
// process beside the Go workers, and every command of docs/clients.md answers what stands there. Its tests need Node, curl
// and jq, and are behind the tag clients: `make test-clients` installs what is missing.
package clients
