package bus

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestAnnounce: whoever listens on the subject hears, in order, until it stops, and again after the connection was lost.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	n := startNATS(t)
	teller, listener := open(t, n.URL()), open(t, n.URL())
	heard := make(chan string, 10_000)
	stop, err := listener.Listen("wiggle.test.news", func(data []byte) { heard <- string(data) })
	if err != nil {
		t.Fatal(err)
	}
	// tell announces until a message is heard, as one that comes before the subscription is lost.
	tell := func(text string) {
		t.Helper()
		again := time.NewTicker(5 * time.Millisecond)
		defer again.Stop()
		deadline := time.After(30 * time.Second)
		for {
			if err := teller.Announce("wiggle.test.news", []byte(text)); err != nil && !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
			select {
			case got := <-heard:
				if got == text {
					return
				}
			case <-again.C:
			case <-deadline:
				t.Fatalf("%s was not heard in 30 s", text)
			}
		}
	}
	tell("first")
	for i := range 100 {
		if err := teller.Announce("wiggle.test.other", []byte("nobody's")); err != nil {
			t.Fatal(err)
		}
		if err := teller.Announce("wiggle.test.news", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i < 100; {
		switch got := <-heard; got {
		case "first": // told again meanwhile
		case fmt.Sprint(i):
			i++
		default:
			t.Fatalf("heard %q before %d", got, i)
		}
	}
	n.Stop()
	until(t, "not connected", func() bool { return !teller.Connected() })
	if err := teller.Announce("wiggle.test.news", nil); !errors.Is(err, ErrUnavailable) {
		t.Errorf("while NATS is away: %v", err)
	}
	if err := n.Restart(); err != nil {
		t.Fatal(err)
	}
	tell("after the loss")

	other := make(chan struct{}, 10_000)
	stopOther, err := teller.Listen("wiggle.test.news", func([]byte) { other <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer stopOther()
	stop()
	for len(heard) > 0 {
		<-heard
	}
	if err := teller.Announce("wiggle.test.news", []byte("last")); err != nil {
		t.Fatal(err)
	}
	<-other
	if len(heard) > 0 {
		t.Errorf("heard %q after it had stopped", <-heard)
	}
	listener.Close()
	stop() // twice, and without a connection, is no matter
	if _, err := listener.Listen("wiggle.test.news", func([]byte) {}); err == nil {
		t.Error("a bus that is closed listens")
	}
}
