package work

import (
	"context"
	"sync"
)

// frameBytes is what a message counts beside its length.
const frameBytes = 64

// queue is messages that wait to be sent. Putting one in does not wait; who puts in
// without bound waits for room before the next.
type queue struct {
	limit int           // bytes
	more  chan struct{} // there is something to take

	mu     sync.Mutex
	frames [][]byte
	bytes  int
	closed bool
	less   chan struct{} // closed when there is room again; nil if nobody waits
}

func newQueue(limit int) *queue { return &queue{limit: limit, more: make(chan struct{}, 1)} }

// put adds a message. After close it does nothing.
func (q *queue) put(frame []byte) {
	q.mu.Lock()
	if !q.closed {
		q.frames = append(q.frames, frame)
		q.bytes += len(frame) + frameBytes
	}
	q.mu.Unlock()
	q.poke()
}

func (q *queue) poke() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// take removes the first message, waiting for one. It is false when the queue is closed
// and empty, or ctx done. Only one goroutine may take.
func (q *queue) take(ctx context.Context) ([]byte, bool) {
	for {
		q.mu.Lock()
		if len(q.frames) > 0 {
			frame := q.frames[0]
			q.frames[0] = nil
			if q.frames = q.frames[1:]; len(q.frames) == 0 {
				q.frames = nil // let go of what is sent
			}
			if q.bytes -= len(frame) + frameBytes; q.bytes <= q.limit && q.less != nil {
				close(q.less)
				q.less = nil
			}
			q.mu.Unlock()
			return frame, true
		}
		closed := q.closed
		q.mu.Unlock()
		if closed {
			return nil, false
		}
		select {
		case <-q.more:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// room waits until there is room, and tells whether there is: false if ctx was done
// first.
func (q *queue) room(ctx context.Context) bool {
	for {
		q.mu.Lock()
		if q.bytes <= q.limit {
			q.mu.Unlock()
			return true
		}
		if q.less == nil {
			q.less = make(chan struct{})
		}
		less := q.less
		q.mu.Unlock()
		select {
		case <-less:
		case <-ctx.Done():
			return false
		}
	}
}

// full tells whether there is no room.
func (q *queue) full() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes > q.limit
}

// close ends the queue: what is in it may still be taken.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.poke()
}

// empty closes the queue and removes what is in it.
func (q *queue) empty() [][]byte {
	q.close()
	q.mu.Lock()
	defer q.mu.Unlock()
	frames := q.frames
	q.frames, q.bytes = nil, 0
	if q.less != nil {
		close(q.less)
		q.less = nil
	}
	return frames
}
