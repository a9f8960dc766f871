package password

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// scheme is an algorithm by its name in the PHC format.
type scheme string

const (
	argon2id     scheme = "argon2id"
	pbkdf2SHA256 scheme = "pbkdf2-sha256"
	pbkdf2SHA512 scheme = "pbkdf2-sha512"
)

// Bounds of what is accepted. The upper ones keep the check of one password below about a second and MaxMemoryKiB; the lower
// ones refuse what a list of guesses would break anyway.
const (
	// MaxMemoryKiB is the second recommendation of RFC 9106 (section 4), the most that imported hashes usually have.
	MaxMemoryKiB   = 64 << 10
	maxPasses      = 10
	maxLanes       = 16
	minMemoryKiB   = 4 << 10
	minIterations  = 10_000
	maxIterations  = 2_000_000
	minSalt        = 8
	maxSalt        = 64
	minHash        = 16
	maxHash        = 64
	argon2Version  = "v=19"
	maxEncodedText = 512
)

// parsed is a hash with what it was made by.
//
//nolint:recvcheck // a value, which its own parser fills
type parsed struct {
	scheme scheme
	// memoryKiB, passes and lanes are argon2id's; iterations are PBKDF2's.
	memoryKiB, passes, lanes, iterations uint32
	salt, hash                           []byte
}

var phcEncoding = base64.RawStdEncoding.Strict()

// parse reads a hash. Its error says what is wrong and repeats neither salt nor hash.
func parse(text string) (parsed, error) {
	if len(text) > maxEncodedText {
		return parsed{}, fmt.Errorf("the hash has %d bytes: at most %d are allowed", len(text), maxEncodedText)
	}
	parts := strings.Split(text, "$")
	if len(parts) < 2 || parts[0] != "" {
		return parsed{}, errors.New("the hash does not begin with $ and the name of an algorithm")
	}
	p, rest := parsed{scheme: scheme(parts[1])}, parts[2:]
	switch p.scheme {
	case argon2id:
		if len(rest) == 0 || rest[0] != argon2Version {
			return parsed{}, errors.New("an argon2id hash has the version " + argon2Version + " behind its name")
		}
		rest = rest[1:]
	case pbkdf2SHA256, pbkdf2SHA512:
	default:
		return parsed{}, fmt.Errorf("the algorithm is none of %s, %s and %s", argon2id, pbkdf2SHA256, pbkdf2SHA512)
	}
	if len(rest) != 3 {
		return parsed{}, fmt.Errorf("an %s hash has parameters, salt and hash, with a $ before each", p.scheme)
	}
	var err error
	if p.salt, err = decode("salt", rest[1], minSalt, maxSalt); err != nil {
		return parsed{}, err
	}
	if p.hash, err = decode("hash", rest[2], minHash, maxHash); err != nil {
		return parsed{}, err
	}
	if p.scheme == argon2id {
		err = p.readArgon2(rest[0])
	} else {
		err = p.readPBKDF2(rest[0])
	}
	if err != nil {
		return parsed{}, err
	}
	return p, nil
}

func decode(what, text string, low, high int) ([]byte, error) {
	b, err := phcEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("the %s is not base64 without padding", what)
	}
	if len(b) < low || len(b) > high {
		return nil, fmt.Errorf("the %s has %d bytes: allowed are %d to %d", what, len(b), low, high)
	}
	return b, nil
}

func (p *parsed) readArgon2(text string) error {
	return parameters(text, []parameter{
		{"m", &p.memoryKiB, minMemoryKiB, MaxMemoryKiB, true},
		{"t", &p.passes, 1, maxPasses, true},
		{"p", &p.lanes, 1, maxLanes, true},
	})
}

func (p *parsed) readPBKDF2(text string) error {
	length := uint32(len(p.hash)) //nolint:gosec // bounded by decode
	err := parameters(text, []parameter{
		{"i", &p.iterations, minIterations, maxIterations, true},
		{"l", &length, minHash, maxHash, false},
	})
	if err == nil && int(length) != len(p.hash) {
		err = fmt.Errorf("the hash has %d bytes, and its parameter l says %d", len(p.hash), length)
	}
	return err
}

// parameter is one of those between two $, in their order.
type parameter struct {
	name      string
	target    *uint32
	low, high uint32
	required  bool
}

func parameters(text string, known []parameter) error {
	fields := strings.Split(text, ",")
	for _, k := range known {
		if len(fields) == 0 || !strings.HasPrefix(fields[0], k.name+"=") {
			if k.required {
				return fmt.Errorf("the parameter %s is missing, or not at its place", k.name)
			}
			continue
		}
		digits := strings.TrimPrefix(fields[0], k.name+"=")
		n, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || strconv.FormatUint(n, 10) != digits {
			return fmt.Errorf("the parameter %s is no number", k.name)
		}
		if n < uint64(k.low) || n > uint64(k.high) {
			return fmt.Errorf("the parameter %s is %d: allowed is %d to %d", k.name, n, k.low, k.high)
		}
		*k.target, fields = uint32(n), fields[1:]
	}
	if len(fields) > 0 {
		return errors.New("there is a parameter that is not known")
	}
	return nil
}

// String is the hash in the PHC format.
func (p parsed) String() string {
	salt, hash := phcEncoding.EncodeToString(p.salt), phcEncoding.EncodeToString(p.hash)
	if p.scheme == argon2id {
		return fmt.Sprintf("$%s$%s$m=%d,t=%d,p=%d$%s$%s", p.scheme, argon2Version, p.memoryKiB, p.passes, p.lanes, salt, hash)
	}
	return fmt.Sprintf("$%s$i=%d,l=%d$%s$%s", p.scheme, p.iterations, len(p.hash), salt, hash)
}
