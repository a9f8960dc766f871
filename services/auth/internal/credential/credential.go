// Package credential is the secrets that callers show: how they look, how they are made, and what is kept of them.
//
// A credential is written kind_id_secret: wgk_ for API keys, wgs_ for sessions, wgi_ for the set-up of the first
// administrator. The id is public: logs, lists and caches name a credential by it. The secret is 256 random bits; behind it
// stands a checksum over all that comes before, so that a credential that was cut or mistyped is refused without asking the
// database. Only a hash of the secret is kept. A secret with that much entropy needs no slow hash.
package credential

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"hash/crc32"
	"strings"
)

// Kind says what a credential is.
type Kind string

// The kinds, by the prefix that shows what a leaked credential is, to people and to scanners of repositories.
const (
	Key     Kind = "wgk"
	Session Kind = "wgs"
	SetUp   Kind = "wgi"
)

const (
	alphabet  = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	separator = "_"
	idLen     = 16 // 95 bits: never the same twice
	secretLen = 43 // 256 bits
	checkLen  = 6  // of 32 bits
	// HashLen is the length of a secret's hash.
	HashLen = sha256.Size
)

// ErrMalformed tells that a text is no credential: it was cut, mistyped, or is something else.
var ErrMalformed = errors.New("the credential is malformed: it was cut or mistyped")

// Credential is a credential with its secret. It never prints it: String is the public part.
type Credential struct {
	Kind   Kind
	ID     string
	secret string
}

// New mints a credential.
func New(kind Kind) Credential { return Rotated(kind, random(idLen)) }

// Rotated mints another secret for an id.
func Rotated(kind Kind, id string) Credential {
	return Credential{Kind: kind, ID: id, secret: random(secretLen)}
}

// Parse reads a credential. Its error is [ErrMalformed] and repeats nothing of the text.
func Parse(text string) (Credential, error) {
	kind, rest, _ := strings.Cut(text, separator)
	id, secret, _ := strings.Cut(rest, separator)
	switch Kind(kind) {
	case Key, Session, SetUp:
	default:
		return Credential{}, ErrMalformed
	}
	if len(id) != idLen || len(secret) != secretLen+checkLen || strings.Trim(id+secret, alphabet) != "" {
		return Credential{}, ErrMalformed
	}
	c := Credential{Kind: Kind(kind), ID: id, secret: secret[:secretLen]}
	if secret[secretLen:] != c.checksum() {
		return Credential{}, ErrMalformed
	}
	return c, nil
}

// Reveal is the whole credential, for whom it was made, this once.
func (c Credential) Reveal() string { return c.body() + c.checksum() }

// Hash is what is kept of the secret.
func (c Credential) Hash() []byte {
	sum := sha256.Sum256([]byte(c.secret))
	return sum[:]
}

// Matches tells whether the credential's secret is the one of a hash, in a time that tells nothing else. No hash, as of a
// secret that is over, matches nothing.
func (c Credential) Matches(hash []byte) bool {
	return len(hash) == HashLen && subtle.ConstantTimeCompare(c.Hash(), hash) == 1
}

// String is the credential without its secret.
func (c Credential) String() string { return string(c.Kind) + separator + c.ID }

// GoString is String, for %#v.
func (c Credential) GoString() string { return c.String() }

func (c Credential) body() string { return c.String() + separator + c.secret }

func (c Credential) checksum() string {
	sum := crc32.ChecksumIEEE([]byte(c.body()))
	var digits [checkLen]byte
	for i := range digits {
		digits[checkLen-1-i] = alphabet[sum%uint32(len(alphabet))]
		sum /= uint32(len(alphabet))
	}
	return string(digits[:])
}

// random is a text of letters and digits, each as likely as any other: bytes past the last whole multiple of the alphabet
// are drawn again.
func random(n int) string {
	const fair = 256 - 256%len(alphabet)
	text := make([]byte, 0, n)
	var drawn [64]byte
	for len(text) < n {
		_, _ = rand.Read(drawn[:]) // never fails, see crypto/rand
		for _, b := range drawn {
			if int(b) < fair && len(text) < n {
				text = append(text, alphabet[int(b)%len(alphabet)])
			}
		}
	}
	return string(text)
}
