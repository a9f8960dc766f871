// Package release judges which releases of services work together, and keeps those of the services that a process calls, so
// that an operator is told of one that is too far away (OPS-4).
package release

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
)

var (
	versionPattern = regexp.MustCompile(`^v(\d{1,9})\.(\d{1,9})\.\d+(-[0-9A-Za-z.-]+)?$`)
	// pseudoPattern ends the versions that Go gives to commits without a tag.
	pseudoPattern = regexp.MustCompile(`[-.]\d{14}-[0-9a-f]{12}$`)
)

// Compatible tells whether services of two releases work together (OPS-4): those of the same major version whose minor
// versions are at most one apart. What is no release (built from a working copy or from a commit without a tag, or of
// unknown origin) is taken to be compatible with everything: whoever runs it knows what it is.
func Compatible(a, b string) bool {
	majorA, minorA, okA := parse(a)
	majorB, minorB, okB := parse(b)
	if !okA || !okB {
		return true
	}
	return majorA == majorB && max(minorA-minorB, minorB-minorA) <= 1
}

func parse(release string) (major, minor int, ok bool) {
	parts := versionPattern.FindStringSubmatch(release)
	if parts == nil || pseudoPattern.MatchString(release) {
		return 0, 0, false
	}
	major, _ = strconv.Atoi(parts[1]) // the pattern has digits that fit
	minor, _ = strconv.Atoi(parts[2])
	return major, minor, true
}

const (
	// maxPeers bounds the peers whose releases are kept.
	maxPeers = 1000
	// peerTime is how long a peer that is not heard of any more counts.
	peerTime = time.Minute
)

// Peers keeps the releases of the services that a process calls, and tells of those that are too far from its own. It is safe
// for concurrent use; a nil one keeps nothing.
type Peers struct {
	own    string
	logger *slog.Logger
	now    func() time.Time

	mu    sync.RWMutex
	peers map[string]peer
}

type peer struct {
	release    string
	compatible bool
	seen       time.Time // of one that is not
}

// NewPeers makes the record of a process of the given release, with a metric of how many peers are incompatible.
func NewPeers(own string, logger *slog.Logger, meter metric.Meter, now func() time.Time) (*Peers, error) {
	r := &Peers{own: own, logger: logger, now: now, peers: map[string]peer{}}
	_, err := meter.Int64ObservableGauge("wiggle.peers.incompatible",
		metric.WithDescription("Services called in the last minute whose release is more than one away from this process's."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			n := 0
			for _, peers := range r.incompatible() {
				n += peers
			}
			o.Observe(int64(n))
			return nil
		}))
	if err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	return r, nil
}

// Seen notes which release a peer is of, by its address. When it is found to be of one that is incompatible it is logged.
func (r *Peers) Seen(address, release string) {
	if r == nil {
		return
	}
	r.mu.RLock()
	known, ok := r.peers[address]
	r.mu.RUnlock()
	again := ok && known.release == release
	if again && known.compatible {
		return
	}
	seen := peer{release: release, compatible: Compatible(r.own, release), seen: r.now()}
	r.mu.Lock()
	if !ok && len(r.peers) >= maxPeers {
		clear(r.peers) // those that are still there are seen again
	}
	r.peers[address] = seen
	r.mu.Unlock()
	if !again && !seen.compatible {
		r.logger.Warn("a service is of a release that is more than one away from this one's: upgrade one step at a time",
			slog.String("peer", address), slog.String("release", release), slog.String("own_release", r.own))
	}
}

// incompatible counts the peers that are, by release, and forgets those that are not heard of any more.
func (r *Peers) incompatible() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := map[string]int{}
	for address, p := range r.peers {
		switch {
		case p.compatible:
		case r.now().Sub(p.seen) > peerTime:
			delete(r.peers, address)
		default:
			count[p.release]++
		}
	}
	return count
}

// Warnings tells of the peers that are incompatible, a line for each release.
func (r *Peers) Warnings() []string {
	if r == nil {
		return nil
	}
	var warnings []string
	for release, n := range r.incompatible() {
		warnings = append(warnings,
			fmt.Sprintf("services that are called are of release %s (%d of them), more than one away from %s", release, n, r.own))
	}
	slices.Sort(warnings)
	return warnings
}
