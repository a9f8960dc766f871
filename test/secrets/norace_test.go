//go:build !race

package secrets

// underRace tells that the race detector is on.
const underRace = false
