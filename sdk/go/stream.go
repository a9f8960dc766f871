package wiggle

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

const (
	// openTime bounds how long the first message of a stream may take to go out.
	openTime = 15 * time.Second
	// silence is how long a stream may bring nothing while an answer is owed, as one
	// is to the hello. One that is silent for longer is given up for another.
	silence = 10 * time.Second
	// leaveTime is how long a stream that is left for another may take to answer what
	// it was sent.
	leaveTime = 10 * time.Second
)

var (
	errSilent = errors.New("the stream is open, but nothing has been answered for " + silence.String())
	errEnded  = errors.New("the server ended the stream")
)

// line is what a session has besides if it talks by streams: one, and for a moment
// two, when the server of the first goes away. It is guarded by session.mu.
//
//	opening --hello--> current --draining--> left --> ended
//	                      \                      /
//	                       +------- broken -----+
type line struct {
	streams map[*stream]struct{} // that have not ended
	current *stream              // where messages go; nil while there is none
	beats   []*held              // leases to renew
	// parting tells that all is handed back and nothing is taken any more. releases
	// are the tasks to hand back, by the stream that was told; nil: none yet.
	parting  bool
	releases map[taskKey]*stream

	out     chan struct{} // there is something to send
	answers chan struct{} // a message was answered
}

func newLine(out chan struct{}) line {
	return line{
		streams: map[*stream]struct{}{}, releases: map[taskKey]*stream{},
		out: out, answers: make(chan struct{}, 1),
	}
}

// stream is one Work stream.
type stream struct {
	conn   *connect.BidiStreamForClientSimple[wigglev1.WorkRequest, wigglev1.WorkResponse]
	cancel context.CancelCauseFunc
	first  chan struct{} // closed when a message has come
	drains chan struct{} // closed when the server says that it goes away
	ended  chan struct{}
	err    error // why; to be read once ended

	// Guarded by session.mu.
	credits   int       // granted and not used up: so many tasks may come
	revoking  bool      // the server was asked to give them back
	received  int64     // tasks that have come
	confirmed int64     // of those, how many the server was told
	confirmAt time.Time // when it is to be told at the latest
	heard     time.Time // when something came last; zero: never
	owed      time.Time // since when there has always been something to answer
	open      int       // messages that are not answered
	settling  int       // settlements that are not answered
	alone     bool      // one that went alone is among them
	draining  bool
	leaving   bool // nothing more is sent but the end
	closed    bool // the end was sent
}

// message is what has to be answered in one message of a stream. It is guarded by
// session.mu.
type message struct {
	stream *stream
	open   int
}

// add notes an item that has to be answered.
func (m *message) add(now time.Time) {
	if m.open++; m.open == 1 {
		if m.stream.open++; m.stream.open == 1 {
			m.stream.owed = now
		}
	}
}

// answered notes the answer to an item.
func (m *message) answered() {
	if m.open--; m.open == 0 {
		m.stream.open--
	}
}

// noLonger notes that a settlement is answered, or that no answer is waited for.
func (s *settlement) noLonger() {
	if s.sent == nil {
		return
	}
	s.sent.answered()
	if st := s.sent.stream; st.settling > 0 {
		st.settling--
		st.alone = st.alone && st.settling > 0
	}
	s.sent = nil
}

// sentBeat is a beat that waits to be sent, or for its answer.
type sentBeat struct {
	queued bool
	beat   *wigglev1.Beat
	at     time.Time
	sent   *message
}

func (b *sentBeat) noLonger() {
	if b.sent != nil {
		b.sent.answered()
		b.sent = nil
	}
}

// delivered notes that a task has come.
func (st *stream) delivered(now time.Time) {
	st.credits = max(st.credits-1, 0)
	if st.received == st.confirmed {
		st.confirmAt = now.Add(confirmTime)
	}
	st.received++
}

// streamLoop keeps a stream open until ctx is done. Tasks live on in work.
func (s *session) streamLoop(ctx, work context.Context) {
	var receivers sync.WaitGroup
	defer receivers.Wait()
	health := s.health("work")
	told := false
	for failures := 0; ctx.Err() == nil; {
		st := s.openStream(ctx, work, &receivers)
		err := s.tend(ctx, st, func() {
			failures = 0
			health.note(ctx, nil)
		})
		if ctx.Err() != nil || s.over() {
			return
		}
		var e *Error
		if errors.As(toError("work", err), &e) {
			health.note(ctx, e)
			if e.noStream() && !told {
				told = true
				s.w.logger.LogAttrs(ctx, slog.LevelError, "wiggle: the server, or a proxy before it, does not take the worker's stream, "+
					"which needs HTTP/2 all the way: let it pass, or set WorkerOptions.Unary", slog.Any("error", e))
			}
		}
		failures++
		if sleep(ctx, max(pollRetries.pause(failures), e.pause())) != nil {
			return
		}
	}
}

func (s *session) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parted()
}

func (e *Error) pause() time.Duration {
	if e == nil {
		return 0
	}
	return jittered(e.RetryAfter)
}

// noStream tells of a server, or something before it, that does not know the stream
// or takes none because it does not speak HTTP/2.
func (e *Error) noStream() bool {
	return e.Code == connect.CodeUnimplemented || strings.Contains(e.Message, "HTTP/1") || // what answered speaks that
		strings.Contains(e.Message, "HTTP status 505") || strings.Contains(e.Message, "HTTP status 415") ||
		strings.Contains(e.Message, "no application protocol") // TLS without HTTP/2
}

// openStream opens a stream and makes it the current one once its hello is out. The
// one before is left.
func (s *session) openStream(ctx, work context.Context, receivers *sync.WaitGroup) *stream {
	ctx, cancel := context.WithCancelCause(ctx)
	st := &stream{
		cancel: cancel,
		first:  make(chan struct{}), drains: make(chan struct{}), ended: make(chan struct{}),
	}
	conn, err := s.w.client.streams.Work(ctx)
	if err != nil {
		cancel(nil)
		st.err = err
		close(st.ended)
		return st
	}
	st.conn = conn
	// The transport does not see that ctx is done while it waits for what to send.
	context.AfterFunc(ctx, func() { _ = conn.CloseRequest() })
	hello := s.hello(st)
	receivers.Go(func() { s.receiveLoop(ctx, work, st) })
	limit := time.AfterFunc(openTime, func() { cancel(errSilent) })
	defer limit.Stop()
	if !st.send(hello) {
		return st
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.streams[st]; !ok {
		return st // it has ended already
	}
	if old := s.current; old != nil {
		old.leaving = true
		time.AfterFunc(leaveTime, func() { old.cancel(errSilent) })
	}
	s.current = st
	wake(s.out)
	return st
}

// send sends a message. An error breaks the stream: whoever receives is told why.
func (st *stream) send(req *wigglev1.WorkRequest) bool {
	err := st.conn.Send(req)
	if err != nil && !errors.Is(err, io.EOF) {
		st.cancel(err) // it could not be made; else the stream is broken already
	}
	return err == nil
}

// hello is the first message of a stream, with the first credits.
func (s *session) hello(st *stream) *wigglev1.WorkRequest {
	opts := s.w.opts
	hello := &wigglev1.WorkHello{
		Namespace: s.w.client.namespace, Worker: opts.Name, Queues: opts.Queues, Workflows: s.w.bindings(),
		Lease: durationpb.New(opts.Lease),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.held {
		hello.Held = append(hello.Held, &wigglev1.TaskLease{TaskId: key.id, Lease: key.lease})
	}
	for key := range s.releases {
		hello.Held = append(hello.Held, &wigglev1.TaskLease{TaskId: key.id, Lease: key.lease})
	}
	s.streams[st] = struct{}{}
	st.owed = time.Now()
	return &wigglev1.WorkRequest{Hello: hello, Credits: s.grant(st)}
}

// grant is how many credits there is room for beyond those that are out. They are
// out from now on. It is called with mu held.
func (s *session) grant(st *stream) int32 {
	if s.stopping.Load() || st.draining {
		return 0
	}
	room := s.room()
	for other := range s.streams {
		room -= other.credits
	}
	if room <= 0 {
		return 0
	}
	st.credits += room
	return toInt32(room)
}

// tend looks after a stream until it has ended, and returns why, or until its server
// says that it goes away, nil.
func (s *session) tend(ctx context.Context, st *stream, alive func()) error {
	look := time.NewTicker(silence)
	defer look.Stop()
	first := st.first
	for {
		select {
		case <-first:
			alive()
			first = nil
		case <-look.C:
			s.checkSilence(time.Now())
		case <-st.drains:
			return nil
		case <-st.ended:
			return st.err
		case <-ctx.Done():
			<-st.ended
			return st.err
		}
	}
}

// checkSilence breaks streams that owe an answer and bring nothing.
func (s *session) checkSilence(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		since := st.owed
		if st.heard.After(since) {
			since = st.heard
		}
		if (st.open > 0 || st.heard.IsZero()) && now.Sub(since) >= silence {
			st.cancel(errSilent)
		}
	}
}

// receiveLoop takes what comes on a stream until it ends.
func (s *session) receiveLoop(ctx, work context.Context, st *stream) {
	for {
		res, err := st.conn.Receive()
		if err == nil {
			s.receive(ctx, work, st, res)
			continue
		}
		err = whyEnded(ctx, err)
		st.cancel(nil)
		_ = st.conn.CloseResponse()
		s.end(st, err)
		return
	}
}

// whyEnded makes of the error of Receive one that tells why the stream ended: of what
// the server said, a reason of our own, or a connection that is gone.
func whyEnded(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	switch code := connect.CodeOf(err); {
	case errors.Is(err, io.EOF):
		err = errEnded
	case cause != nil && !errors.Is(cause, context.Canceled):
		err = cause
	case code == connect.CodeInternal && !connect.IsWireError(err):
		return connect.NewError(connect.CodeUnavailable, err)
	}
	if ce := new(connect.Error); errors.As(err, &ce) {
		return err
	}
	return connect.NewError(connect.CodeUnavailable, err)
}

// end deals with what a stream that has ended leaves behind: its credits are void,
// and what was not answered is sent again.
func (s *session) end(st *stream, err error) {
	var e *Error
	errors.As(toError("work", err), &e)
	suspect := refused(e) || broken(e)
	var again []*settlement

	s.mu.Lock()
	delete(s.streams, st)
	if s.current == st {
		s.current = nil
	}
	suspect = suspect && !st.heard.IsZero() // else it was the hello
	for _, h := range s.held {
		if b := &h.beat; b.sent != nil && b.sent.stream == st {
			if h.progress == nil {
				h.progress = b.beat.GetProgress()
			}
			*b = sentBeat{queued: b.queued}
			h.beatAt = time.Now()
		}
		if it := &h.outcome; it.sent != nil && it.sent.stream == st {
			it.sent = nil
			again = append(again, it)
			if suspect {
				h.beatAt = time.Now() // its answer shows that it was not the hello
			}
		}
	}
	for key, told := range s.releases {
		if told == st {
			s.releases[key] = nil
		}
	}
	s.mu.Unlock()

	for _, it := range again {
		if suspect && it.alone {
			s.answered(it, e)
			continue
		}
		// One that is bad must not hold the others back: each goes alone.
		it.alone = it.alone || suspect
		s.retry(it, e)
	}
	st.err = err
	close(st.ended)
	wake(s.beatNow)
	wake(s.out)
	wake(s.answers)
	wake(s.changed)
}
