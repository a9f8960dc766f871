package password

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// small makes tests fast. It is no recommendation.
func small() Params { return Params{MemoryKiB: minMemoryKiB, Passes: 1, Lanes: 1} }

// Hashes that other programs made. The first is of the argon2 reference implementation's tests, the others of Python's hashlib.
const (
	foreignArgon2 = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
	foreignSHA256 = "$pbkdf2-sha256$i=10000,l=32$c29tZXNhbHRzb21lc2FsdA$PhDZpTri2KZk3CJjksQCcDDaGf36KxfkgWElmz5yFVA"
	foreignSHA512 = "$pbkdf2-sha512$i=10000,l=64$c29tZXNhbHRzb21lc2FsdA$AZDSbetEC40vZncLQS9w6Lkdg/ncDTcn/x3RgiuwpQcPqNJP5zZmD36vl+nUE6eA0aR2hUjzDLTdtsTAei4mNA"
)

func TestHashAndVerify(t *testing.T) {
	t.Parallel()
	h := New(small(), nil)
	hash, err := h.Hash(t.Context(), "correct horse")
	if err != nil || !strings.HasPrefix(hash, "$argon2id$v=19$m=4096,t=1,p=1$") {
		t.Fatalf("%s, %v", hash, err)
	}
	for given, want := range map[string]bool{"correct horse": true, "correct horse ": false, "": false} {
		if ok, err := h.Verify(t.Context(), hash, given); ok != want || err != nil {
			t.Errorf("%q: %v, %v", given, ok, err)
		}
	}
	if again, _ := h.Hash(t.Context(), "correct horse"); again == hash {
		t.Error("two hashes have the same salt")
	}
	if h.Outdated(hash) || !New(DefaultParams(), nil).Outdated(hash) {
		t.Error("a hash is outdated by its parameters, and only so")
	}
}

// AUT-2: imported hashes are accepted, and are to be replaced.
func TestForeignHashes(t *testing.T) {
	t.Parallel()
	h := New(small(), nil)
	for _, hash := range []string{foreignArgon2, foreignSHA256, foreignSHA512} {
		if ok, err := h.Verify(t.Context(), hash, "password"); !ok || err != nil {
			t.Errorf("%s: %v, %v", hash, ok, err)
		}
		if ok, err := h.Verify(t.Context(), hash, "Password"); ok || err != nil {
			t.Errorf("%s takes another password: %v, %v", hash, ok, err)
		}
		if err := Validate(hash); err != nil || !h.Outdated(hash) {
			t.Errorf("%s: %v", hash, err)
		}
	}
}

// A hostile hash must not burn the machine: all of these are refused before anything is computed.
func TestBounds(t *testing.T) {
	t.Parallel()
	h := New(small(), func(time.Duration) { t.Error("a refused hash was computed") })
	const salt, hash = "c29tZXNhbHQ", "CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
	for _, text := range []string{
		"", "x", "$", "$$", "$argon2id", "$argon2id$v=19", "$md5$" + salt + "$" + hash,
		"$argon2i$v=19$m=65536,t=2,p=1$" + salt + "$" + hash,
		"$argon2id$v=16$m=65536,t=2,p=1$" + salt + "$" + hash,
		"$argon2id$v=19$m=65537,t=2,p=1$" + salt + "$" + hash,
		"$argon2id$v=19$m=4294967295,t=2,p=1$" + salt + "$" + hash,
		"$argon2id$v=19$m=99999999999,t=2,p=1$" + salt + "$" + hash,
		"$argon2id$v=19$m=1024,t=2,p=1$" + salt + "$" + hash,
		"$argon2id$v=19$m=65536,t=11,p=1$" + salt + "$" + hash,
		"$argon2id$v=19$m=65536,t=0,p=1$" + salt + "$" + hash,
		"$argon2id$v=19$m=65536,t=2,p=0$" + salt + "$" + hash,
		"$argon2id$v=19$m=65536,t=2,p=255$" + salt + "$" + hash,
		"$argon2id$v=19$t=2,m=65536,p=1$" + salt + "$" + hash,
		"$argon2id$v=19$m=65536,t=2,p=1,x=1$" + salt + "$" + hash,
		"$argon2id$v=19$m=+65536,t=2,p=1$" + salt + "$" + hash,
		"$argon2id$v=19$m=65536,t=2,p=1$c2FsdA$" + hash,
		"$argon2id$v=19$m=65536,t=2,p=1$" + strings.Repeat(salt, 9) + "$" + hash,
		"$argon2id$v=19$m=65536,t=2,p=1$" + salt + "$c2hvcnQ",
		"$argon2id$v=19$m=65536,t=2,p=1$" + salt + "=$" + hash,
		"$pbkdf2-sha256$i=9999$" + salt + "$" + hash,
		"$pbkdf2-sha256$i=2000001$" + salt + "$" + hash,
		"$pbkdf2-sha256$i=10000,l=31$" + salt + "$" + hash,
		"$pbkdf2-sha1$i=10000$" + salt + "$" + hash,
		strings.Repeat("$", 10_000),
	} {
		err := Validate(text)
		if err == nil {
			t.Errorf("%.80q is accepted", text)
			continue
		}
		if strings.Contains(err.Error(), hash) || strings.Contains(err.Error(), salt) {
			t.Errorf("the error repeats the hash: %v", err)
		}
		if text == "" {
			continue // an account that does not exist
		}
		if ok, err := h.Verify(t.Context(), text, "password"); ok || err == nil {
			t.Errorf("%.80q: %v, %v", text, ok, err)
		}
	}
}

// AUT-7: an unknown name takes as many hashes as a known one, of the same parameters.
func TestUnknownTakesTheSameWork(t *testing.T) {
	t.Parallel()
	count := 0
	h := New(small(), func(time.Duration) { count++ })
	known, err := h.Hash(t.Context(), "a password")
	if err != nil {
		t.Fatal(err)
	}
	for _, hash := range []string{"", known} {
		count = 0
		if ok, err := h.Verify(t.Context(), hash, "another"); ok || err != nil || count != 1 {
			t.Errorf("%v, %v after %d hashes", ok, err, count)
		}
	}
	if got := (Params{h.dummy.memoryKiB, h.dummy.passes, h.dummy.lanes}); got != small() {
		t.Errorf("the dummy's parameters are %+v", got)
	}
}

// A flood waits for its turn in a bounded number; more is refused, and who gives up is gone.
func TestBoundedConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := New(small(), nil)
		for range MaxConcurrent {
			h.turns <- struct{}{}
			h.waiting.Add(1)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range MaxWaiting {
			all.Go(func() {
				if _, err := h.Hash(ctx, "x"); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		if _, err := h.Hash(ctx, "x"); !errors.Is(err, ErrBusy) {
			t.Errorf("one more: %v", err)
		}
		cancel()
		all.Wait()
		if n := h.waiting.Load(); n != MaxConcurrent {
			t.Errorf("%d still wait", n)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "$argon2id$v=19$m=4096,t=1,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc", foreignSHA256, foreignSHA512,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parse(text)
		if err != nil {
			return
		}
		again, err := parse(p.String())
		if err != nil || again.String() != p.String() {
			t.Errorf("%q was read as %s, and that not: %v", text, p, err)
		}
		if p.memoryKiB > MaxMemoryKiB || p.passes > maxPasses || p.lanes > maxLanes || p.iterations > maxIterations {
			t.Errorf("%q is out of bounds: %+v", text, p)
		}
	})
}
