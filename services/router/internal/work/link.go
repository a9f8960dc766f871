package work

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/backends"
	"github.com/wiggle-run/wiggle/services/router/internal/pause"
)

const (
	// firstBackoff is the pause before a link that was not accepted is tried again. It
	// doubles up to maxBackoff.
	firstBackoff = 20 * time.Millisecond
	maxBackoff   = time.Second
	// cutAfter is how long a link is kept whose process was found to be gone.
	cutAfter = time.Second
	// linkBytes bounds what waits to be sent to one shard.
	linkBytes = 4 << 20
)

// link is the stream of a session to one process for one shard.
type link struct {
	session *session
	shard   int
	process *backends.Process
	out     *queue

	// Guarded by the session's mutex.
	share     *share
	open      bool  // accepted
	leaving   bool  // we have ended our side
	look      bool  // there may be tasks that its process does not know of
	confirmed int64 // tasks that the worker has confirmed
	told      int64 // of these, how many the shard was told of
}

// slot is the place of a shard in a session.
type slot struct {
	shard int
	link  *link // nil: none
	tries int   // that failed since the last one that did not
	retry *time.Timer
}

// connect opens a link to the process that the shard's work goes to. The mutex is held.
func (s *session) connect(at *slot, not *backends.Process) {
	if at.link != nil || s.ended || s.draining || s.ctx.Err() != nil {
		return
	}
	if at.retry != nil {
		at.retry.Stop()
		at.retry = nil
	}
	var process *backends.Process
	for _, p := range s.hub.forward.Set().Shard(at.shard).Accepting {
		if process == nil && p != not {
			process = p
		}
	}
	if process == nil {
		return // when there is one, Ready says so
	}
	l := &link{session: s, shard: at.shard, process: process, out: newQueue(linkBytes)}
	l.share = s.ledger.expect(l)
	at.link = l
	s.links[l] = struct{}{}
	s.background.Go(func() {
		err := lifecycle.Protect(s.ctx, func(context.Context) error { return l.run() })
		s.over(l, err)
	})
}

// run speaks with the shard until the stream is over.
func (l *link) run() error {
	alive := l.process.Alive()
	ctx, cancel := context.WithCancel(rpc.WithShard(l.session.ctx, l.shard))
	defer cancel()
	stop := context.AfterFunc(alive, func() {
		// It takes no more connections. If it goes down in good order it says so on this
		// one, which else breaks, or says nothing.
		if pause.For(ctx, cutAfter, nil) && !l.session.isLeaving(l) {
			cancel()
		}
	})
	defer stop()
	err := l.converse(ctx, cancel)
	if err != nil && l.session.ctx.Err() == nil && alive.Err() == nil {
		l.session.hub.forward.StreamFailed(alive, l.process, err)
	}
	return err
}

func (l *link) converse(ctx context.Context, cancel context.CancelFunc) error {
	late := time.AfterFunc(l.session.hub.cfg.OpenTimeout, cancel)
	defer late.Stop()
	hello, err := l.session.helloFor(ctx, l.shard)
	if err != nil {
		return err
	}
	stream := l.process.Work.CallBidiStream(ctx)
	defer stream.CloseResponse() //nolint:errcheck // the stream is over, its error is Receive's
	// The transport sees that ctx is done when it has something to send.
	defer context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })()
	if err := stream.Send(&Request{Bytes: hello}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := stream.Receive(); err != nil {
		return unexpected(err)
	}
	late.Stop()
	l.session.opened(l)
	l.session.background.Go(func() {
		defer stream.CloseRequest() //nolint:errcheck // if it fails, Receive does
		for {
			frame, ok := l.out.take(ctx)
			if !ok || stream.Send(&Request{Bytes: frame}) != nil {
				return
			}
		}
	})
	for {
		if !l.session.out.room(ctx) {
			return ctx.Err()
		}
		msg, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := l.session.fromShard(l, msg.Bytes); err != nil {
			return err
		}
	}
}

// unexpected is the error of a stream that ended before it began.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the process ended the stream at once")
	}
	return err
}

// helloFor is the worker's hello as a shard gets it.
func (s *session) helloFor(ctx context.Context, shard int) ([]byte, error) {
	held, err := s.heldOn(ctx, shard)
	if err != nil {
		return nil, err
	}
	hello := proto.CloneOf(s.hello)
	hello.Held = held
	return proto.Marshal(&wigglev1.WorkRequest{Hello: hello})
}

// opened takes note that a shard has accepted the hello.
func (s *session) opened(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.open = true
	if !l.leaving {
		s.ledger.open(l.share)
		s.slots[l.shard].tries = 0
	}
	s.flush()
}

// leave ends a link in good order: what waits for it is sent, and it ends when everything
// is answered. The mutex is held.
func (s *session) leave(l *link) {
	l.leaving = true
	s.ledger.shut(l.share)
	l.out.close()
	if at := s.slots[l.shard]; at != nil && at.link == l {
		at.link = nil
	}
}

// isLeaving tells whether we have ended our side of a link: then its connection alone
// tells whether an answer may come.
func (s *session) isLeaving(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.leaving
}

// replace leaves a link for one to another process. The mutex is held.
func (s *session) replace(l *link) {
	s.leave(l)
	if at := s.slots[l.shard]; at != nil {
		s.connect(at, l.process)
		s.tryAgain(at)
	}
}

// over takes a link out whose stream has ended.
func (s *session) over(l *link, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, l)
	s.ledger.remove(l.share)
	at := s.slots[l.shard]
	if at != nil && at.link == l {
		at.link = nil
	}
	switch {
	case s.ctx.Err() != nil: // the session is over
	case l.open && (err != nil || !l.leaving):
		s.fail(brokenLink(l.shard, err))
	case !l.open:
		s.refuse(l.out.empty(), l.shard)
		if err := rejected(err); err != nil {
			s.fail(err)
		} else if at != nil {
			s.tryAgain(at)
		}
	}
	s.flush()
	if s.ended && len(s.links) == 0 {
		s.out.close()
	}
}

// tryAgain has a slot without a link connect after a while. The mutex is held.
func (s *session) tryAgain(at *slot) {
	if at.link != nil || s.ended || s.draining {
		return
	}
	wait := min(firstBackoff<<min(at.tries, 10), maxBackoff)
	at.tries++
	at.retry = time.AfterFunc(pause.Jitter(wait), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.slots[at.shard] == at {
			s.connect(at, nil)
		}
	})
}
