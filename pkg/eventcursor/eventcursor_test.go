package eventcursor_test

import (
	"encoding/base64"
	"maps"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/eventcursor"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, c := range []eventcursor.Cursor{
		{},
		{0: 0},
		{0: 1},
		{7: 1<<63 - 1},
		{1<<31 - 1: 5},
		{0: 300, 1: 0, 2: 1 << 40, 63: 127, 64: 128, 1<<31 - 1: 1},
	} {
		text := eventcursor.Encode(c)
		got, err := eventcursor.Decode(text)
		if err != nil || !maps.Equal(got, c) {
			t.Errorf("%v is read from %q as %v, %v", c, text, got, err)
		}
	}
}

// A cursor is short: what one event carries should not outweigh it.
func TestShort(t *testing.T) {
	t.Parallel()
	c := eventcursor.Cursor{}
	for shard := range 16 {
		c[shard] = 1_000_000
	}
	if n := len(eventcursor.Encode(c)); n > 100 {
		t.Errorf("a cursor over 16 shards has %d letters", n)
	}
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	good := eventcursor.Encode(eventcursor.Cursor{0: 300, 3: 17})
	bytes, err := base64.RawURLEncoding.DecodeString(good)
	if err != nil {
		t.Fatal(err)
	}
	for i := range bytes {
		for bit := range 8 {
			bytes[i] ^= 1 << bit
			if got, err := eventcursor.Decode(base64.RawURLEncoding.EncodeToString(bytes)); err == nil {
				t.Errorf("with bit %d of byte %d changed it is %v", bit, i, got)
			}
			bytes[i] ^= 1 << bit
		}
	}
	for _, text := range []string{
		"", "AQ", good[:len(good)-1], good + "A", good + "=", " " + good, "****", strings.Repeat("A", eventcursor.MaxText+1),
	} {
		if got, err := eventcursor.Decode(text); err == nil {
			t.Errorf("%.40q is read as %v", text, got)
		}
	}
}

// What is read is written the same: no two texts mean the same place.
func FuzzDecode(f *testing.F) {
	for _, c := range []eventcursor.Cursor{{}, {0: 1}, {0: 300, 5: 1 << 40}} {
		f.Add(eventcursor.Encode(c))
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := eventcursor.Decode(text)
		if err != nil {
			return
		}
		if again := eventcursor.Encode(c); again != text {
			t.Errorf("%q is %v, which is written %q", text, c, again)
		}
		for shard, seq := range c {
			if shard < 0 || seq < 0 {
				t.Errorf("%q is %v", text, c)
			}
		}
	})
}

// FuzzBody goes behind the check, which a fuzzer does not guess.
func FuzzBody(f *testing.F) {
	f.Add([]byte{1, 1, 0})
	f.Fuzz(func(t *testing.T, body []byte) {
		text := eventcursor.Seal(body)
		c, err := eventcursor.Decode(text)
		if err == nil && eventcursor.Encode(c) != text {
			t.Errorf("%x is %v, which is written otherwise", body, c)
		}
	})
}
