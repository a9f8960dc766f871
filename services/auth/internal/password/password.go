package password

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/argon2"
)

const (
	// MaxConcurrent is how many hashes are computed at a time, which bounds their memory to MaxConcurrent times
	// MaxMemoryKiB: 256 MiB where all are imported ones, 76 MiB of new ones.
	MaxConcurrent = 4
	// MaxWaiting is how many more may wait for their turn: some ten seconds' worth.
	MaxWaiting = 256

	saltLen = 16
	hashLen = 32
)

// ErrBusy tells that as many wait for a hash as may.
var ErrBusy = errors.New("too many passwords are being checked")

// Params are those of new hashes.
type Params struct {
	MemoryKiB, Passes, Lanes uint32
}

// DefaultParams are 19 MiB and two passes: the first recommendation of the OWASP Password Storage Cheat Sheet for argon2id.
// RFC 9106 recommends 64 MiB and three passes where memory is scarce; a service that must bear many sign-ins at a time
// takes OWASP's, which it holds to be as hard on GPUs.
func DefaultParams() Params { return Params{MemoryKiB: 19 << 10, Passes: 2, Lanes: 1} }

// Hasher hashes passwords and checks them. It is safe for concurrent use.
type Hasher struct {
	params   Params
	computed func(time.Duration)
	turns    chan struct{}
	waiting  atomic.Int64
	dummy    parsed
}

// New makes a hasher whose new hashes have the parameters. computed, if not nil, is called with the time of each hash.
func New(params Params, computed func(time.Duration)) *Hasher {
	if computed == nil {
		computed = func(time.Duration) {}
	}
	h := &Hasher{params: params, computed: computed, turns: make(chan struct{}, MaxConcurrent)}
	h.dummy = h.fresh()
	h.dummy.hash = make([]byte, hashLen) // of no password that anybody knows
	_, _ = rand.Read(h.dummy.hash)       // never fails, see crypto/rand
	return h
}

// Validate tells what is wrong with a hash that somebody brings along.
func Validate(hash string) error {
	_, err := parse(hash)
	return err
}

// Hash hashes a password. Errors: [ErrBusy], the context's.
func (h *Hasher) Hash(ctx context.Context, password string) (string, error) {
	p := h.fresh()
	var err error
	p.hash, err = h.compute(ctx, p, password)
	return p.String(), err
}

// Verify tells whether the password is the one of a hash. An empty hash, of an account that does not exist, matches none, and
// takes the same work as a hash with the parameters of new ones does (AUT-7). Errors: [ErrBusy], the context's, and that of
// a hash that cannot be read.
func (h *Hasher) Verify(ctx context.Context, hash, password string) (bool, error) {
	p, known := h.dummy, hash != ""
	if known {
		var err error
		if p, err = parse(hash); err != nil {
			return false, fmt.Errorf("read a password's hash: %w", err)
		}
	}
	got, err := h.compute(ctx, p, password)
	if err != nil {
		return false, err
	}
	return subtle.ConstantTimeCompare(got, p.hash) == 1 && known, nil
}

// Outdated tells whether a hash is to be replaced by one with the parameters of new ones, as soon as its password is known.
func (h *Hasher) Outdated(hash string) bool {
	p, err := parse(hash)
	return err != nil || p.scheme != argon2id || (Params{p.memoryKiB, p.passes, p.lanes}) != h.params || len(p.hash) != hashLen
}

// fresh is a hash to be made: with a salt of its own.
func (h *Hasher) fresh() parsed {
	p := parsed{
		scheme: argon2id, memoryKiB: h.params.MemoryKiB, passes: h.params.Passes, lanes: h.params.Lanes, salt: make([]byte, saltLen),
		hash: make([]byte, hashLen),
	}
	_, _ = rand.Read(p.salt) // never fails, see crypto/rand
	return p
}

// compute waits for its turn and hashes a password as p was.
func (h *Hasher) compute(ctx context.Context, p parsed, password string) ([]byte, error) {
	if h.waiting.Add(1) > MaxConcurrent+MaxWaiting {
		h.waiting.Add(-1)
		return nil, ErrBusy
	}
	defer h.waiting.Add(-1)
	select {
	case h.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-h.turns }()
	begun := time.Now()
	defer func() { h.computed(time.Since(begun)) }()
	return p.derive(password)
}

func (p parsed) derive(password string) ([]byte, error) {
	switch n := len(p.hash); p.scheme {
	case pbkdf2SHA256:
		return pbkdf2.Key(sha256.New, password, p.salt, int(p.iterations), n)
	case pbkdf2SHA512:
		return pbkdf2.Key(sha512.New, password, p.salt, int(p.iterations), n)
	default:
		lanes, length := uint8(p.lanes), uint32(n) //nolint:gosec // bounded by parse
		return argon2.IDKey([]byte(password), p.salt, p.passes, p.memoryKiB, lanes, length), nil
	}
}
