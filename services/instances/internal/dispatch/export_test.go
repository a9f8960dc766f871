package dispatch

import "runtime"

// Settle waits until a consumer has found that the rows hold nothing for it.
func (s *Shard) Settle(c *Consumer) {
	for backlog := true; backlog; backlog, _ = s.crews.seen(c.crew) {
		runtime.Gosched()
	}
}

// Held is how many leased tokens are kept.
func (s *Shard) Held() int {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	return len(s.held.byToken)
}
