package steps

import (
	"encoding/binary"
	"io"
	"sync"
)

// Totals are what a worker process has brought about so far: reports that the server took, of a step each or, in batched
// mode, of several, and instances that ended with such a report. Workers write them to a pipe, as fixed records, whenever
// they have changed.
type Totals struct{ Settled, Ended uint64 }

const totalsBytes = 16

func (t Totals) write(w io.Writer) error {
	var record [totalsBytes]byte
	binary.LittleEndian.PutUint64(record[:8], t.Settled)
	binary.LittleEndian.PutUint64(record[8:], t.Ended)
	_, err := w.Write(record[:])
	return err
}

func readTotals(r io.Reader) (Totals, error) {
	var record [totalsBytes]byte
	if _, err := io.ReadFull(r, record[:]); err != nil {
		return Totals{}, err
	}
	return Totals{binary.LittleEndian.Uint64(record[:8]), binary.LittleEndian.Uint64(record[8:])}, nil
}

// Tally gathers the totals of several worker processes.
type Tally struct {
	// Changed has something after a change, for one waiter at a time.
	Changed chan struct{}

	mu  sync.Mutex
	all []Totals // by process
}

// NewTally makes the tally of so many processes.
func NewTally(processes int) *Tally {
	return &Tally{Changed: make(chan struct{}, 1), all: make([]Totals, processes)}
}

// Follow takes what a process writes until its pipe ends. ready is called with the first record.
func (t *Tally) Follow(process int, r io.Reader, ready func()) {
	for {
		now, err := readTotals(r)
		if err != nil {
			return
		}
		if ready != nil {
			ready()
			ready = nil
		}
		t.mu.Lock()
		t.all[process] = now
		t.mu.Unlock()
		select {
		case t.Changed <- struct{}{}:
		default:
		}
	}
}

// Sum is that of all processes.
func (t *Tally) Sum() Totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	var Sum Totals
	for _, one := range t.all {
		Sum.Settled += one.Settled
		Sum.Ended += one.Ended
	}
	return Sum
}
