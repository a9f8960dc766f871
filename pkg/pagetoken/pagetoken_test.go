package pagetoken_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/wiggle-run/wiggle/pkg/pagetoken"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func TestGolden(t *testing.T) {
	t.Parallel()
	tok := pagetoken.Token{
		CreatedAt:  time.Date(2026, 11, 2, 9, 0, 0, 123456789, time.UTC),
		ULID:       [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
		FilterHash: 0xdeadbeefcafef00d,
	}
	const want = "AQAGX0de7EZAAQIDBAUGBwgJCgsMDQ4PEN6tvu_K_vANjg7fQA"
	got := pagetoken.Encode(tok)
	if got != want {
		t.Fatalf("got %s, want %s: tokens of the last release would no longer be read", got, want)
	}
	back, err := pagetoken.Decode(got)
	if err != nil {
		t.Fatal(err)
	}
	tok.CreatedAt = tok.CreatedAt.Truncate(time.Microsecond)
	if back != tok {
		t.Fatalf("got %+v, want %+v", back, tok)
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	good := pagetoken.Encode(pagetoken.Token{CreatedAt: time.Unix(1, 0)})
	for _, s := range []string{
		"", "x", good[1:], good + "A", good + "=", strings.Repeat("A", len(good)), strings.Repeat("\n", len(good)),
		"B" + good[1:], good[:len(good)-1] + "!", good[:20] + "zz" + good[22:],
	} {
		if _, err := pagetoken.Decode(s); !errors.Is(err, pagetoken.ErrMalformed) {
			t.Errorf("%q: got %v", s, err)
		}
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	a := &wigglev1.InstanceFilter{States: []wigglev1.InstanceState{3, 1, 3}}
	b := &wigglev1.InstanceFilter{Namespace: "default", States: []wigglev1.InstanceState{1, 3}}
	s := pagetoken.Encode(pagetoken.Token{CreatedAt: time.Unix(7, 0), FilterHash: pagetoken.FilterHash(a)})
	if _, err := pagetoken.DecodeFor(s, b); err != nil {
		t.Fatalf("the same filter, spelt otherwise: %v", err)
	}
	for _, other := range []*wigglev1.InstanceFilter{
		nil,
		{Namespace: "n", States: b.States},
		{Workflow: "w", States: b.States},
		{States: b.States, CreatedFrom: timestamppb.New(time.Unix(1, 0))},
		{States: b.States, CreatedBefore: timestamppb.New(time.Unix(1, 0))},
	} {
		if _, err := pagetoken.DecodeFor(s, other); !errors.Is(err, pagetoken.ErrOtherFilter) {
			t.Errorf("%v: got %v", other, err)
		}
	}
	if _, err := pagetoken.DecodeFor("x", b); !errors.Is(err, pagetoken.ErrMalformed) {
		t.Fatalf("got %v", err)
	}
	if pagetoken.FilterHash(nil) != pagetoken.FilterHash(&wigglev1.InstanceFilter{Namespace: "default"}) {
		t.Fatal("no filter and the default filter differ")
	}
}

func TestRoundTripAndOrder(t *testing.T) {
	t.Parallel()
	gen := rapid.Custom(func(t *rapid.T) pagetoken.Token {
		tok := pagetoken.Token{
			CreatedAt:  time.UnixMicro(rapid.Int64Range(-62135596800000000, 253402300799999999).Draw(t, "micros")).UTC(),
			FilterHash: rapid.Uint64().Draw(t, "hash"),
		}
		copy(tok.ULID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "ulid"))
		return tok
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		back, err := pagetoken.Decode(pagetoken.Encode(a))
		if err != nil || back != a {
			t.Fatalf("%+v came back as %+v, %v", a, back, err)
		}
		if pagetoken.Compare(a, b) != -pagetoken.Compare(b, a) || pagetoken.Compare(a, a) != 0 {
			t.Fatal("not an order")
		}
		if a.CreatedAt.After(b.CreatedAt) && pagetoken.Compare(a, b) >= 0 {
			t.Fatal("the newer row does not come first")
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(pagetoken.Encode(pagetoken.Token{CreatedAt: time.Unix(1, 2000)}))
	f.Add("")
	f.Add(strings.Repeat("A", 50))
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := pagetoken.Decode(s)
		if err != nil {
			if !errors.Is(err, pagetoken.ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		if got := pagetoken.Encode(tok); got != s {
			t.Fatalf("%q reads as %+v, which is written %q", s, tok, got)
		}
	})
}
