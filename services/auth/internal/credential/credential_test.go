package credential

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

var shape = regexp.MustCompile(`^wg[kis]_[0-9A-Za-z]{16}_[0-9A-Za-z]{49}$`)

// AUT-2: random, recognisable, and only a hash is kept.
func TestMintAndParse(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, kind := range []Kind{Key, Session, SetUp} {
		for range 200 {
			c := New(kind)
			text := c.Reveal()
			if !shape.MatchString(text) || !strings.HasPrefix(text, string(kind)+"_") {
				t.Fatalf("made %q", text)
			}
			got, err := Parse(text)
			if err != nil || got != c || !got.Matches(c.Hash()) {
				t.Fatalf("%s was read as %v: %v", c, got, err)
			}
			if seen[c.ID] || seen[c.secret] {
				t.Fatal("the same was drawn twice")
			}
			seen[c.ID], seen[c.secret] = true, true
			if bytes.Contains(c.Hash(), []byte(c.secret)) {
				t.Fatal("the hash holds the secret")
			}
		}
	}
}

func TestRotatedKeepsItsID(t *testing.T) {
	t.Parallel()
	c := New(Key)
	r := Rotated(Key, c.ID)
	if r.ID != c.ID || r.Matches(c.Hash()) || c.Matches(r.Hash()) {
		t.Errorf("%v was rotated to %v", c, r)
	}
}

func TestMatchesNothingThatIsOver(t *testing.T) {
	t.Parallel()
	c := New(Key)
	for _, hash := range [][]byte{nil, {}, c.Hash()[:HashLen-1], New(Key).Hash()} {
		if c.Matches(hash) {
			t.Errorf("matches a hash of %d bytes that is not its own", len(hash))
		}
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	t.Parallel()
	c := New(Session)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, c); strings.Contains(text, c.secret) {
			t.Errorf("%s prints the secret: %s", format, text)
		}
	}
}

// Every single wrong letter, every cut and every swap of neighbours is found by the checksum.
func TestTyposAreRefused(t *testing.T) {
	t.Parallel()
	text := New(Key).Reveal()
	wrong := []string{"", "wgk", "wgk_", "wgk__", text + "0", text[1:], "Bearer " + text, strings.ToUpper(text), " " + text}
	for i := range text {
		other := byte('x')
		if text[i] == other {
			other = 'y'
		}
		wrong = append(wrong, text[:i]+string(other)+text[i+1:], text[:i]+text[i+1:])
		if i > 0 && text[i] != text[i-1] {
			wrong = append(wrong, text[:i-1]+string(text[i])+string(text[i-1])+text[i+1:])
		}
	}
	for _, w := range wrong {
		if _, err := Parse(w); !errors.Is(err, ErrMalformed) {
			t.Errorf("%q was read: %v", w, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("")
	f.Add("wgk_")
	f.Add("wgs_a_b")
	f.Add(New(Key).Reveal())
	f.Add(New(SetUp).Reveal())
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse(text)
		switch {
		case err != nil && (c != Credential{}):
			t.Errorf("%q is malformed and was read as %v", text, c)
		case err == nil && c.Reveal() != text:
			t.Errorf("%q was read as %v", text, c)
		}
	})
}
