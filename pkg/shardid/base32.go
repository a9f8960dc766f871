package shardid

import (
	"encoding/binary"
	"strconv"

	"github.com/oklog/ulid/v2"
)

// The ULID text is written and read here, and not by the ulid package, because that one writes upper case and reads
// either: an id must have one spelling, or the same id would be two keys.

// alphabet is Crockford's base 32 in lower case: without i, l, o and u.
const alphabet = "0123456789abcdefghjkmnpqrstvwxyz"

// notDigit is what digit answers for a character outside the alphabet.
const notDigit = 0xff

func digit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'h':
		return c - 'a' + 10
	case c == 'j' || c == 'k':
		return c - 'j' + 18
	case c == 'm' || c == 'n':
		return c - 'm' + 20
	case c >= 'p' && c <= 't':
		return c - 'p' + 22
	case c >= 'v' && c <= 'z':
		return c - 'v' + 27
	default:
		return notDigit
	}
}

// scanULID reads the 26 digits of a ULID into u and says what is wrong with them, if anything.
func scanULID(s string, u *ulid.ULID) (fault string) {
	if len(s) != ulid.EncodedSize {
		return strconv.Itoa(len(s)) + " characters instead of 26"
	}
	var hi, lo uint64
	for i := range len(s) {
		d := digit(s[i])
		if d == notDigit {
			if s[i] >= 'A' && s[i] <= 'Z' {
				return "an upper-case letter"
			}
			return "a character outside 0-9a-z without i, l, o, u"
		}
		hi, lo = hi<<5|lo>>59, lo<<5|uint64(d)
	}
	// 26 digits hold 130 bits; the two that a ULID does not have must be zero, or two texts would be one ULID.
	if s[0] > '7' {
		return "the first character is above 7, which overflows 128 bits"
	}
	binary.BigEndian.PutUint64(u[:8], hi)
	binary.BigEndian.PutUint64(u[8:], lo)
	return ""
}

func appendULID(dst []byte, u ulid.ULID) []byte {
	hi, lo := binary.BigEndian.Uint64(u[:8]), binary.BigEndian.Uint64(u[8:])
	var text [ulid.EncodedSize]byte
	for i := len(text) - 1; i >= 0; i-- {
		text[i] = alphabet[lo&31]
		hi, lo = hi>>5, lo>>5|hi<<59
	}
	return append(dst, text[:]...)
}
