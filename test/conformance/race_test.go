//go:build race

package conformance

// underRace tells that the race detector is on.
const underRace = true
