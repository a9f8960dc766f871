package api

import (
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// refuseFor is how long starts are refused here after their shard has refused some. It is a small part of the time that what
// waits there takes, so the shard does not run dry meanwhile.
const refuseFor = 200 * time.Millisecond

// refusals remembers which shards have more starts waiting than they take. Under a load many times of what a shard can do, that
// saves it the work of saying so again and again (WRK-15).
type refusals struct {
	mu     sync.Mutex
	shards map[int]refusal
}

type refusal struct {
	until time.Time
	err   *faults.Error
}

// check is the shard's own refusal, if it is fresh.
func (r *refusals) check(shard int, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last, ok := r.shards[shard]; ok && now.Before(last.until) {
		return last.err
	}
	return nil
}

// checkAll is a refusal if all these shards' are fresh.
func (r *refusals) checkAll(shards []int, now time.Time) error {
	var err error
	for _, shard := range shards {
		if err = r.check(shard, now); err == nil {
			return nil
		}
	}
	return err
}

// Refuse refuses calls that start instances while no shard takes any, before they are read.
func (s *Services) Refuse(procedure string) error {
	switch procedure {
	case wigglev1connect.InstanceServiceStartInstanceProcedure, wigglev1connect.InstanceServiceStartInstancesProcedure:
		return s.refusals.checkAll(s.cluster().Instances(), time.Now())
	}
	return nil
}

// note takes note of what a shard answered to starts.
func (r *refusals) note(shard int, now time.Time, outcomes []*wigglev1.StartOutcome, err error) {
	fault := faults.FromError(err)
	if n := len(outcomes); err == nil && n > 0 {
		fault = faults.FromProto(outcomes[n-1].GetFault()) // the last are refused first
	}
	if !overloaded(fault) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shards == nil {
		r.shards = map[int]refusal{}
	}
	r.shards[shard] = refusal{until: now.Add(refuseFor), err: fault}
}

// overloaded tells whether a fault is the refusal of a shard that has too much to do. A limit that was passed has the same
// code, and no time after which to try again.
func overloaded(fault *faults.Error) bool {
	_, again := fault.RetryAfter()
	return fault.Code() == faults.CodeResourceExhausted && again
}

// allOverloaded is the refusal of a call none of whose starts was taken for want of room. It is told once for all.
func allOverloaded(outcomes []*wigglev1.StartOutcome) error {
	var first *faults.Error
	for _, o := range outcomes {
		f := o.GetFault()
		if f.GetCode() != int32(faults.CodeResourceExhausted) || f.GetRetryAfter() == nil {
			return nil
		}
		if first == nil {
			first = faults.FromProto(f)
		}
	}
	if first == nil {
		return nil
	}
	return first
}
