package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/wiggle-run/wiggle/internal/devstack"
	"github.com/wiggle-run/wiggle/pkg/settings"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startNATS(t *testing.T) *devstack.NATS {
	t.Helper()
	n, err := devstack.StartNATS(devstack.NATSConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}

func open(t *testing.T, url string) *Bus {
	t.Helper()
	b, err := Open(Config{URLs: []string{url}, Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// until tries again and again until something is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	deadline := time.After(30 * time.Second)
	for !is() {
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("%s: not so in 30 s", what)
		}
	}
}

func ensure(t *testing.T, b *Bus) Stream {
	t.Helper()
	s, err := b.EnsureStream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// event is the seq-th entry of a shard.
func event(shard, seq int) Event {
	return Event{
		Shard: shard, Seq: int64(seq), Instance: fmt.Sprintf("wfi.s%d.1", shard), Revision: 3, Namespace: "default", Workflow: "order",
		Version: 2, Key: "k", Type: "wf.started", Node: "pay", Time: time.UnixMicro(1_800_000_000_000_000 + int64(seq)).UTC(),
		Payload: []byte(`{"seq":1}`),
	}
}

func events(shard, from, to int) []Event {
	var list []Event
	for seq := from; seq <= to; seq++ {
		list = append(list, event(shard, seq))
	}
	return list
}

func publish(t *testing.T, b *Bus, list []Event) {
	t.Helper()
	if n, err := b.Publish(t.Context(), ensure(t, b).ID, list); err != nil || n != len(list) {
		t.Fatalf("published %d of %d: %v", n, len(list), err)
	}
}

// stored reads all that the stream holds.
func stored(t *testing.T, b *Bus) []Event {
	t.Helper()
	f := b.Follow("reader" + nats.NewInbox()[7:])
	var all []Event
	for {
		got, err := f.Fetch(t.Context(), 1000, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			return all
		}
		for _, d := range got {
			all = append(all, d.Event)
			_ = d.Ack()
		}
	}
}

func wantSeqs(t *testing.T, b *Bus, want string) {
	t.Helper()
	var got []string
	for _, e := range stored(t, b) {
		got = append(got, fmt.Sprint(e.Seq))
	}
	if all := strings.Join(got, " "); all != want {
		t.Errorf("the stream holds %q, want %q", all, want)
	}
}

// TestPublish: events come out as they were put in, in order (EVT-4).
func TestPublish(t *testing.T) {
	t.Parallel()
	b := open(t, startNATS(t).URL())
	odd := event(7, 1)
	odd.Key, odd.Workflow, odd.Namespace, odd.Type, odd.Node = " k\r\n%41\x00é\t", "a.b *>", "", "x.y", ""
	odd.Payload, odd.Version, odd.Revision = nil, 0, 0
	list := append([]Event{odd}, events(7, 2, 2*MaxInFlight+3)...)
	publish(t, b, list)
	got := stored(t, b)
	if len(got) != len(list) {
		t.Fatalf("%d of %d are there", len(got), len(list))
	}
	for i := range got {
		if fmt.Sprintf("%+v", got[i]) != fmt.Sprintf("%+v", list[i]) {
			t.Fatalf("event %d is\n%+v, was\n%+v", i, got[i], list[i])
		}
	}
}

// TestDuplicates: what is given again is not stored again, whatever was sent in between, and be it many.
func TestDuplicates(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	b := open(t, n.URL())
	publish(t, b, events(0, 1, 700))
	publish(t, b, events(1, 1, 5))
	publish(t, b, events(0, 1, 710)) // as after a crash between the publishing and the cursor
	other := open(t, n.URL())
	publish(t, other, events(0, 600, 720))
	if s := ensure(t, b); s.Messages != 725 || s.Last != 725 {
		t.Errorf("the stream is %+v", s)
	}
	last := map[int]int64{}
	for _, e := range stored(t, b) {
		if e.Seq != last[e.Shard]+1 {
			t.Fatalf("shard %d: %d after %d", e.Shard, e.Seq, last[e.Shard])
		}
		last[e.Shard] = e.Seq
	}
}

// TestOrderWhenNumbersAreTaken: somebody else's message takes a number that was meant for one of ours.
func TestOrderWhenNumbersAreTaken(t *testing.T) {
	t.Parallel()
	b := open(t, startNATS(t).URL())
	publish(t, b, events(0, 1, 2))
	for range 3 {
		if _, err := b.js.Publish(t.Context(), SubjectRoot+".foreign", nil); err != nil {
			t.Fatal(err)
		}
		from := int(b.last) - 1
		publish(t, b, events(0, from, from+20))
	}
	var seq int64
	for _, e := range stored(t, b) {
		if seq++; e.Seq != seq {
			t.Fatalf("%d stands where %d should", e.Seq, seq)
		}
	}
}

// TestOrderWhenMessagesAreLost: what follows a lost message is refused, also where another publisher has put something
// at its place.
func TestOrderWhenMessagesAreLost(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	b := open(t, n.URL())
	publish(t, b, events(0, 1, 2))
	b.last++ // 3 was sent and lost
	if stored, err := b.append(t.Context(), events(0, 4, 6)); stored != 0 || !isWrongLast(err) {
		t.Errorf("behind a lost message: stored %d, %v", stored, err)
	}
	b.last--
	publish(t, open(t, n.URL()), events(1, 1, 1)) // takes the number that was meant for 3
	if stored, err := b.append(t.Context(), events(0, 3, 5)); stored != 0 || !isWrongLast(err) {
		t.Errorf("behind a message that was displaced: stored %d, %v", stored, err)
	}
	wantSeqs(t, b, "1 2 1")
	b.seen = ""
	publish(t, b, events(0, 3, 6))
	wantSeqs(t, b, "1 2 1 3 4 5 6")
}

// TestDisplaced: a publisher that is not alone says so instead of trying for ever.
func TestDisplaced(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	b, other := open(t, n.URL()), open(t, n.URL())
	id := ensure(t, b).ID
	ctx, stop := context.WithCancel(t.Context())
	flood := make(chan struct{})
	go func() {
		defer close(flood)
		for ctx.Err() == nil {
			_, _ = other.js.PublishAsync(SubjectRoot+".foreign", nil)
		}
	}()
	defer func() { stop(); <-flood }()
	seq := 0
	until(t, "displaced", func() bool {
		seq++
		_, err := b.Publish(ctx, id, events(0, seq, seq))
		if err != nil && !errors.Is(err, ErrDisplaced) && !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		return errors.Is(err, ErrDisplaced)
	})
}

// TestDownAtOpen: a Bus is opened while NATS is down, says so at once, and works when NATS is up; as does one whose NATS
// goes away for a while.
func TestDownAtOpen(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	n.Stop()
	b := open(t, n.URL())
	began := time.Now()
	if _, err := b.EnsureStream(t.Context()); !errors.Is(err, ErrUnavailable) || time.Since(began) > callTimeout/2 {
		t.Errorf("down: %v after %v", err, time.Since(began))
	}
	if _, err := b.Follow("g").Fetch(t.Context(), 1, time.Second); !errors.Is(err, ErrUnavailable) {
		t.Errorf("down: %v", err)
	}
	if err := n.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, "connected", b.Connected)
	publish(t, b, events(0, 1, 3))
	id := ensure(t, b).ID
	n.Stop()
	until(t, "not connected", func() bool { return !b.Connected() })
	if stored, err := b.Publish(t.Context(), id, events(0, 4, 6)); stored != 0 || !errors.Is(err, ErrUnavailable) {
		t.Errorf("gone: stored %d, %v", stored, err)
	}
	if err := n.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, "connected again", b.Connected)
	if again := ensure(t, b).ID; again != id {
		t.Errorf("the stream is %s and was %s", again, id)
	}
	publish(t, b, events(0, 3, 6))
	wantSeqs(t, b, "1 2 3 4 5 6")
}

// TestGivenUp: the end of the caller's context is told as such, and what was under way harms nobody.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	b := open(t, startNATS(t).URL())
	id := ensure(t, b).ID
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := b.Publish(ctx, id, events(0, 1, 3)); !errors.Is(err, why) {
		t.Errorf("publish: %v", err)
	}
	f := b.Follow("g")
	if _, err := f.Fetch(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	began := time.Now()
	if _, err := f.Fetch(ctx, 1, time.Minute); !errors.Is(err, why) || time.Since(began) > 30*time.Second {
		t.Errorf("fetch: %v after %v", err, time.Since(began))
	}
	publish(t, b, events(0, 1, 3))
	wantSeqs(t, b, "1 2 3")
}

// TestStreamMadeAnew: a stream that comes back empty has another ID, and nothing is put into it by who means the one before.
func TestStreamMadeAnew(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, n *devstack.NATS, b *Bus){
		"storage lost": func(t *testing.T, n *devstack.NATS, _ *Bus) {
			n.Stop()
			if err := os.RemoveAll(n.Dir()); err != nil {
				t.Fatal(err)
			}
			if err := n.Restart(); err != nil {
				t.Fatal(err)
			}
		},
		"deleted": func(t *testing.T, _ *devstack.NATS, b *Bus) {
			if err := b.js.DeleteStream(t.Context(), StreamName); err != nil {
				t.Fatal(err)
			}
		},
		"deleted and made by another": func(t *testing.T, n *devstack.NATS, b *Bus) {
			if err := b.js.DeleteStream(t.Context(), StreamName); err != nil {
				t.Fatal(err)
			}
			ensure(t, open(t, n.URL()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := startNATS(t)
			b := open(t, n.URL())
			publish(t, b, events(0, 1, 3))
			id := ensure(t, b).ID
			follower := b.Follow("g")
			if got, err := follower.Fetch(t.Context(), 10, 0); err != nil || len(got) != 3 {
				t.Fatalf("fetched %d, %v", len(got), err)
			}
			lose(t, n, b)
			until(t, "another stream is told", func() bool {
				stored, err := b.Publish(t.Context(), id, events(0, 4, 6))
				if stored != 0 || err == nil {
					t.Fatalf("stored %d, %v", stored, err)
				}
				return errors.Is(err, ErrOtherStream)
			})
			if s := ensure(t, b); s.ID == id || s.Messages != 0 {
				t.Errorf("the stream is %+v, and was %s", s, id)
			}
			publish(t, b, events(0, 1, 6))
			wantSeqs(t, b, "1 2 3 4 5 6")
			var got []Delivery
			until(t, "the follower goes on", func() bool {
				more, err := follower.Fetch(t.Context(), 10, time.Second)
				if err != nil && !errors.Is(err, ErrUnavailable) {
					t.Fatal(err)
				}
				got = append(got, more...)
				return len(got) == 6
			})
		})
	}
}

// TestLargePayload: an event whose payload is larger than the server takes goes without it, and says so.
func TestLargePayload(t *testing.T) {
	t.Parallel()
	b := open(t, startNATS(t).URL())
	large, fits := event(0, 1), event(0, 2)
	large.Payload = bytes.Repeat([]byte(" "), 1<<20)
	fits.Payload = bytes.Repeat([]byte(" "), 1<<20-4<<10)
	publish(t, b, []Event{large, fits})
	got := stored(t, b)
	if len(got) != 2 || !got[0].Omitted || got[0].Payload != nil || got[1].Omitted || len(got[1].Payload) != len(fits.Payload) {
		t.Errorf("got %d events", len(got))
	}
}

// TestFollow: each event goes to one of a group, again if it is handed back, and nobody waits for company.
func TestFollow(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	b := open(t, n.URL())
	one, other := b.Follow("g"), open(t, n.URL()).Follow("g")
	if got, err := one.Fetch(t.Context(), 10, time.Millisecond); err != nil || len(got) != 0 {
		t.Fatalf("nothing is there: %v, %v", got, err)
	}
	publish(t, b, events(0, 1, 3))
	if _, err := b.js.Publish(t.Context(), SubjectRoot+".foreign", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if pending, err := one.Pending(t.Context()); err != nil || pending != 4 {
		t.Fatalf("%d wait, %v, want 4", pending, err)
	}
	began := time.Now()
	got, err := one.Fetch(t.Context(), 2, time.Minute)
	if err != nil || len(got) != 2 || got[0].Attempt != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	rest, err := other.Fetch(t.Context(), 100, time.Minute)
	if err != nil || len(rest) != 1 || rest[0].Seq != 3 {
		t.Fatalf("got %+v, %v", rest, err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %v, with events there", took)
	}
	for _, err := range []error{got[0].Ack(), got[1].Retry(0), rest[0].Ack()} {
		if err != nil {
			t.Error(err)
		}
	}
	again, err := other.Fetch(t.Context(), 100, time.Minute)
	if err != nil || len(again) != 1 || again[0].Seq != 2 || again[0].Attempt != 2 {
		t.Fatalf("again: %+v, %v", again, err)
	}
	if err := again[0].Ack(); err != nil {
		t.Error(err)
	}
	until(t, "nothing waits", func() bool {
		pending, err := one.Pending(t.Context())
		return err == nil && pending == 0
	})
	// One that waits is woken by an event.
	woken := make(chan []Delivery, 1)
	go func() {
		got, _ := one.Fetch(context.Background(), 100, time.Minute)
		woken <- got
	}()
	publish(t, b, events(0, 4, 4))
	if got := <-woken; len(got) != 1 || got[0].Seq != 4 {
		t.Errorf("woken by %+v", got)
	}
}

// TestPending: what is stored waits from that moment on, though the server counts for its consumers later.
func TestPending(t *testing.T) {
	t.Parallel()
	b := open(t, startNATS(t).URL())
	f := b.Follow("g")
	if _, err := f.Pending(t.Context()); err == nil {
		t.Error("something waits for a group that never was there")
	}
	for i := range 100 { // the more of them, the later it has counted
		if _, err := b.Follow(fmt.Sprint("other", i)).Fetch(t.Context(), 1, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Fetch(t.Context(), 1, 0); err != nil {
		t.Fatal(err)
	}
	const size = 100
	waiting := func(want int64) {
		t.Helper()
		if n, err := f.Pending(t.Context()); err != nil || n != want {
			t.Fatalf("%d wait, %v, want %d", n, err, want)
		}
	}
	for round := range 10 {
		publish(t, b, events(0, round*size+1, (round+1)*size))
		waiting(size)
		got, err := f.Fetch(t.Context(), size, time.Minute)
		if err != nil || len(got) != size {
			t.Fatalf("got %d, %v", len(got), err)
		}
		waiting(size)
		for i, d := range got {
			if err := d.msg.DoubleAck(t.Context()); err != nil {
				t.Fatal(err)
			}
			if i == size/2-1 {
				waiting(size / 2)
			}
		}
		waiting(0)
	}
}

func TestSubject(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]Event{
		"wiggle.events.default.order.wf.started":   {Namespace: "default", Workflow: "order", Type: "wf.started"},
		"wiggle.events.%.a%2Eb.x":                  {Workflow: "a.b", Type: "x"},
		"wiggle.events.n.%2A%3E%20%25%C3%A9.%.y.%": {Namespace: "n", Workflow: "*> %é", Type: ".y."},
	} {
		if got := e.Subject(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// FuzzParse: whatever is in a message, Parse does not panic, and what it takes for an event comes out of a message again.
func FuzzParse(f *testing.F) {
	f.Add("wfi.s0.1", "default", "a%20b", "k", "wf.started", "n", "0", "1", "2", "3", "2026-11-30T05:00:00.000001Z", []byte("{}"))
	f.Add("", "%", "%4", "%zz", " ", "\x00", "-1", "x", "", "9999999999", "never", []byte(nil))
	f.Fuzz(func(t *testing.T, instance, namespace, workflow, key, kind, node, shard, seq, version, revision, at string, data []byte) {
		header := nats.Header{}
		for name, value := range map[string]string{
			headerSubject: instance, headerSpace: namespace, headerWorkflow: workflow, headerKey: key, headerType: kind, headerNode: node,
			headerShard: shard, headerSeq: seq, headerVersion: version, headerRevision: revision, headerTime: at,
		} {
			header[name] = []string{value}
		}
		e, err := Parse(header, data)
		if err != nil {
			if !errors.Is(err, errNoEvent) {
				t.Errorf("got %v", err)
			}
			return
		}
		m := e.message(0)
		again, err := Parse(m.Header, m.Data)
		if e.Time.Year() < 0 || e.Time.Year() > 9999 {
			return // nothing writes such times
		}
		if err != nil || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", e) {
			t.Errorf("%+v became %+v, %v", e, again, err)
		}
		for name, value := range m.Header {
			if strings.ContainsFunc(value[0], func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
				t.Errorf("header %s has %q", name, value)
			}
		}
		if strings.ContainsAny(m.Subject, " *>\t\r\n") || strings.Contains(m.Subject, "..") {
			t.Errorf("subject %q", m.Subject)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	if _, err := Open(Config{}); err == nil {
		t.Error("without a server")
	}
	if _, err := Open(Config{URLs: []string{"nats://127.0.0.1:1"}, CredentialsFile: "/nowhere"}); err == nil {
		t.Error("without the credentials")
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	load := func(environ ...string) (Config, error) {
		var c Config
		r := settings.NewRegistry()
		c.Declare(r)
		values, err := r.Load(environ)
		if text := fmt.Sprint(values, err); strings.Contains(text, "word") {
			t.Errorf("a password is shown: %s", text)
		}
		return c, err
	}
	c, err := load(settingURLs+"=nats://u:word@a:1, tls://b:2", "WIGGLE_NATS_CREDENTIALS=/f")
	if err != nil || len(c.URLs) != 2 || c.CredentialsFile != "/f" {
		t.Errorf("got %+v, %v", c, err)
	}
	for _, bad := range []string{"a:1", "http://u:word@a:1", "nats://", "nats://a:1,nats://u:word@ b"} {
		if _, err := load(settingURLs + "=" + bad); err == nil || !strings.Contains(err.Error(), settingURLs) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestSilentServer: a server that takes connections and says nothing is one that does not answer.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b := open(t, "nats://"+l.Addr().String())
	if _, err := b.EnsureStream(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}
