package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Claim leases tasks to a worker; if there are none it waits for some until wait
// is over, ctx is done or the process goes down. Tasks that were claimed for a
// caller that is gone are handed back at once. Where too many wait it is an
// [OverloadError].
func (s *Shard) Claim(ctx context.Context, c store.Claim, wait time.Duration) ([]store.Claimed, error) {
	defer s.polls.Add(-1)
	if s.polls.Add(1) > int64(s.cfg.Polls) {
		return nil, &OverloadError{RetryAfter: comeBack(pollRetryAfter)}
	}
	if wait <= 0 {
		claimed, _, err := s.claimFor(ctx, c)
		return claimed, err
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	keys := queueKeys(c)
	w := s.parked.Subscribe(group(c), keys...)
	defer w.Close()
	for {
		claimed, _, err := s.claimFor(ctx, c)
		if err != nil || len(claimed) > 0 {
			return claimed, err
		}
		select {
		case <-s.draining():
			return nil, nil
		case <-ctx.Done():
			return nil, nil // the time to wait is over: an empty answer
		case <-w.C():
			w.Rearm()
		}
	}
}

// claimFor claims once, and tells whether that was all that there is. The claim itself
// is not given up with its caller, since what it has leased must then be handed back.
func (s *Shard) claimFor(ctx context.Context, c store.Claim) (claimed []store.Claimed, all bool, err error) {
	select {
	case s.claims <- struct{}{}:
		defer func() { <-s.claims }()
	case <-ctx.Done():
		return nil, false, nil // gone before there was anything to answer
	}
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CommitTimeout)
	defer cancel()
	claimed, err = s.store.Claim(work, c)
	if err != nil {
		s.noteFailure(err)
		s.HandBack(claimed)
		return nil, false, fmt.Errorf("claim tasks: %w", err)
	}
	if len(claimed) == 0 {
		return nil, true, nil
	}
	if ctx.Err() != nil {
		s.HandBack(claimed)
		return nil, false, nil
	}
	found := len(claimed)
	claimed = s.deliverable(claimed)
	claimed, rest := fitting(claimed, c)
	s.HandBack(rest)
	if len(claimed) > 0 {
		s.metrics.claimed(ctx, len(claimed))
		s.lease(soonest(claimed))
		s.hold(claimed)
	}
	all = found < c.Max && len(rest) == 0 && bytesOf(claimed)+s.cfg.Limits.PayloadBytes <= budgetOf(c)
	if !all {
		// There may be more than this worker has room for.
		for _, key := range queueKeys(c) {
			s.Ready(key)
		}
	}
	return claimed, all, nil
}

// deliverable leaves out combines that no message can carry, and fails them: they
// would be claimed and handed back for ever.
func (s *Shard) deliverable(claimed []store.Claimed) []store.Claimed {
	var failed []Event
	claimed = slices.DeleteFunc(claimed, func(c store.Claimed) bool {
		size := len(c.Token.View.Data)
		for _, r := range c.Results {
			size += len(r.View.Data)
		}
		if size <= s.cfg.Limits.CombineBytes || len(c.Results) == 0 {
			return false
		}
		limit := &machine.LimitError{
			Limit: "a combine's input", Setting: machine.SettingCombineBytes, Maximum: s.cfg.Limits.CombineBytes, Actual: size,
		}
		failed = append(failed, Fail(Lease(c.Token), machine.Fail{Type: machine.FailureLimit, Message: limit.Error(), NonRetryable: true}))
		return true
	})
	if len(failed) == 0 {
		return claimed
	}
	for _, o := range s.Apply(failed) {
		if o.Err != nil {
			s.log.Warn("a combine that is too large was not failed; its lease has to run out", "shard", s.id, "error", o.Err)
		}
	}
	return claimed
}

// fitting splits what was claimed where it gets too large for one answer. The store
// bounds the tokens' own payloads; a task of a branch also carries the context around
// it, which is sent once or with every task, as the worker asks. The first is always
// taken.
func fitting(claimed []store.Claimed, c store.Claim) (fit, rest []store.Claimed) {
	budget := budgetOf(c)
	sent := set[machine.ID]{}
	for i, task := range claimed {
		budget -= len(task.Token.View.Data) + len(task.Token.Progress.Data)
		if _, ok := sent[task.Token.Parent]; !ok || !c.SharedBases {
			budget -= len(task.Base.Data)
			sent[task.Token.Parent] = struct{}{}
		}
		for _, r := range task.Results {
			budget -= len(r.View.Data)
		}
		if budget < 0 && i > 0 {
			return claimed[:i:i], claimed[i:]
		}
	}
	return claimed, nil
}

// budgetOf is how many bytes of payload a claim may gather.
func budgetOf(c store.Claim) int {
	if c.MaxBytes == 0 {
		return store.DefaultClaimBytes
	}
	return c.MaxBytes
}

// bytesOf is what a store counts of what it claims.
func bytesOf(claimed []store.Claimed) int {
	n := 0
	for _, c := range claimed {
		n += len(c.Token.View.Data)
	}
	return n
}

// HandBack releases what was claimed for a caller that does not get it, without
// spending an attempt.
func (s *Shard) HandBack(claimed []store.Claimed) {
	if len(claimed) == 0 {
		return
	}
	events := make([]Event, len(claimed))
	for i, c := range claimed {
		events[i] = Release(Lease(c.Token))
	}
	for i, o := range s.Apply(events) {
		if o.Err != nil {
			s.log.Warn("a task that its caller did not get was not handed back; its lease has to run out",
				"shard", s.id, "until", claimed[i].Token.LeaseUntil, "error", o.Err)
		}
	}
}

func soonest(claimed []store.Claimed) time.Time {
	first := claimed[0].Token.LeaseUntil
	for _, c := range claimed[1:] {
		if c.Token.LeaseUntil.Before(first) {
			first = c.Token.LeaseUntil
		}
	}
	return first
}

func queueKeys(c store.Claim) []store.QueueKey {
	keys := make([]store.QueueKey, len(c.Queues))
	for i, q := range c.Queues {
		keys[i] = store.QueueKey{Namespace: c.Namespace, Queue: q}
	}
	return keys
}

// group names the polls that could all take the same tasks: one of them is woken
// for what becomes ready.
func group(c store.Claim) string {
	parts := slices.Clone(c.Queues)
	slices.Sort(parts)
	for _, b := range c.Workflows {
		parts = append(parts, fmt.Sprintf("%s\x00%d", b.Workflow, b.Version))
	}
	slices.Sort(parts[len(c.Queues):])
	return c.Namespace + "\x01" + strings.Join(parts, "\x01")
}

// Lease names the lease under which a token was claimed.
func Lease(t *machine.Token) store.Lease {
	return store.Lease{Instance: t.Instance, Token: t.ID, Fence: t.Fence}
}
