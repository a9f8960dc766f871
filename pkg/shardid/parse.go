package shardid

import (
	"math"
	"strconv"
	"strings"
)

// maxSegments is what the longest form has: {namespace}.c{cell}.e{epoch}.s{n}.{ulid}.
const maxSegments = 5

// quotedInput bounds, in bytes, how much of a refused id an error repeats.
const quotedInput = 48

// ParseError says why a text is not an id. It maps to INVALID_ARGUMENT.
type ParseError struct {
	// Input is the refused text as a quoted Go string of printable ASCII, cut to a few dozen bytes: it comes from
	// outside and ends up in logs and terminals.
	Input string
	// Reason says what is wrong with it, as a clause that follows "the id".
	Reason string

	want Kind
}

// Error says what is wrong and what a right id looks like.
func (e *ParseError) Error() string {
	const example = ".s3.01k6zqk3v8r5d1f0m9c2x7y4ab"
	switch e.want {
	case KindInstance:
		return "invalid instance id " + e.Input + ": it " + e.Reason + "; want wfi.s{shard}.{ulid} in lower case, such as wfi" + example
	case KindToken:
		return "invalid token id " + e.Input + ": it " + e.Reason + "; want tok.s{shard}.{ulid} in lower case, such as tok" + example
	default:
		return "invalid id " + e.Input + ": it " + e.Reason +
			"; want wfi.s{shard}.{ulid} or tok.s{shard}.{ulid} in lower case, such as wfi" + example
	}
}

// Parse reads the id of an instance or a token. The error is a *ParseError.
func Parse(s string) (ID, error) { return parse(s, 0) }

// ParseInstance reads the id of an instance and refuses that of a token. The error is a *ParseError.
func ParseInstance(s string) (ID, error) { return parse(s, KindInstance) }

// ParseToken reads the id of a token and refuses that of an instance. The error is a *ParseError.
func ParseToken(s string) (ID, error) { return parse(s, KindToken) }

func parse(s string, want Kind) (ID, error) {
	id, reason := scan(s, want)
	if reason == "" && want != 0 && id.kind != want {
		reason = "is the id of an " + id.kind.String()
		if id.kind == KindToken {
			reason = "is the id of a token"
		}
	}
	if reason != "" {
		return ID{}, &ParseError{Input: quote(s), Reason: reason, want: want}
	}
	return id, nil
}

// scan tells the forms apart by their number of segments, which no two of them share.
func scan(s string, want Kind) (id ID, reason string) {
	if s == "" {
		return ID{}, "is empty"
	}
	if len(s) > MaxLength {
		return ID{}, "is longer than " + strconv.Itoa(MaxLength) + " characters"
	}
	var segments [maxSegments]string
	n, start := 0, 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != '.' {
			continue
		}
		if i == start {
			return ID{}, "has an empty segment"
		}
		if n == maxSegments {
			return ID{}, "has too many segments"
		}
		segments[n] = s[start:i]
		n, start = n+1, i+1
	}
	switch n {
	case 1:
		return scanBare(s)
	case 3:
		return scanSharded(segments[0], segments[1], segments[2])
	case 4, 5:
		return scanCoordinator(s, segments[:n], want)
	default:
		return ID{}, "has too few segments"
	}
}

func scanSharded(prefix, shard, body string) (ID, string) {
	var id ID
	switch prefix {
	case "wfi":
		id.kind = KindInstance
	case "tok":
		id.kind = KindToken
	default:
		return ID{}, "has an unknown prefix"
	}
	if shard[0] != 's' {
		return ID{}, "has no shard: its second segment does not start with s"
	}
	n, fault := scanNumber(shard[1:], MaxShard)
	if fault != "" {
		return ID{}, "has a bad shard: " + fault
	}
	id.shard = int32(n) //nolint:gosec // the parser bounds it
	if fault = scanULID(body, &id.ulid); fault != "" {
		return ID{}, "has a bad ULID: " + fault
	}
	id.hasULID = true
	return id, ""
}

func scanBare(s string) (ID, string) {
	id := ID{legacy: s}
	switch {
	case strings.HasPrefix(s, "wfi_"):
		id.kind = KindInstance
	case strings.HasPrefix(s, "tok_"):
		id.kind = KindToken
	default:
		return ID{}, "has an unknown prefix"
	}
	body := s[len("wfi_"):]
	if body == "" {
		return ID{}, "has nothing after its prefix"
	}
	if !isWord(body) {
		return ID{}, "has a character other than letters, digits, - and _"
	}
	return id, ""
}

// scanCoordinator reads {namespace}[.c{cell}].e{epoch}.s{n}.{ulid}. Only the ULID is kept: namespace, cell, epoch and
// shard mean nothing since the coordinator is gone, but must be well formed, so that a slip in a sharded id is not taken for one.
func scanCoordinator(s string, segments []string, want Kind) (ID, string) {
	id := ID{kind: KindInstance, hasULID: true, legacy: s}
	if want != 0 {
		id.kind = want
	}
	if !isWord(segments[0]) {
		return ID{}, "has a namespace with a character other than letters, digits, - and _"
	}
	rest := segments[1:]
	if len(rest) == 4 {
		if cell := rest[0]; cell[0] != 'c' || len(cell) == 1 || !isWord(cell) {
			return ID{}, "has a bad cell: its second segment is not c followed by letters, digits, - or _"
		}
		rest = rest[1:]
	}
	epoch, shard, body := rest[0], rest[1], rest[2]
	if epoch[0] != 'e' {
		return ID{}, "has no epoch: the segment before the shard does not start with e"
	}
	if _, fault := scanNumber(epoch[1:], math.MaxInt64); fault != "" {
		return ID{}, "has a bad epoch: " + fault
	}
	if shard[0] != 's' {
		return ID{}, "has no shard: the segment before the ULID does not start with s"
	}
	if _, fault := scanNumber(shard[1:], MaxShard); fault != "" {
		return ID{}, "has a bad shard: " + fault
	}
	if fault := scanULID(body, &id.ulid); fault != "" {
		return ID{}, "has a bad ULID: " + fault
	}
	return id, ""
}

// scanNumber reads a decimal number of one spelling: no sign, no leading zeros, at most limit.
func scanNumber(s string, limit uint64) (n uint64, fault string) {
	if s == "" {
		return 0, "the number is missing"
	}
	if s[0] == '-' {
		return 0, "the number is negative"
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, "not a number"
		}
	}
	if s[0] == '0' && len(s) > 1 {
		return 0, "the number has a leading zero"
	}
	for i := range len(s) {
		d := uint64(s[i] - '0')
		if n > (limit-d)/10 {
			return 0, "the number is above " + strconv.FormatUint(limit, 10)
		}
		n = n*10 + d
	}
	return n, ""
}

// isWord reports whether s has only letters and digits of ASCII, - and _.
func isWord(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}

func quote(s string) string {
	if len(s) <= quotedInput {
		return strconv.QuoteToASCII(s)
	}
	return strconv.QuoteToASCII(s[:quotedInput]) + "..."
}
