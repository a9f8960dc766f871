package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/proto/definition"
)

// The few places where the graph makes the engine look into a payload. Values are
// taken apart as raw text, so that numbers stay as they were written (WF-9).

// element is one member of a collection.
type element struct {
	key   string
	value json.RawMessage
}

// lookup finds the value that a JSON Pointer (RFC 6901) names; ok is false if
// there is none.
func lookup(p Payload, pointer *definition.Pointer) (value json.RawMessage, ok bool, err error) {
	if p.Absent() {
		return nil, false, nil
	}
	if !p.IsJSON() {
		return nil, false, fmt.Errorf("the context is %s, not JSON", p.ContentType)
	}
	if !json.Valid(p.Data) {
		return nil, false, errors.New("the context is not valid JSON")
	}
	value = json.RawMessage(bytes.TrimSpace(p.Data))
	for _, part := range pointer.Tokens {
		if value, ok, err = member(value, part); err != nil || !ok {
			return nil, false, err
		}
	}
	return value, true, nil
}

// member takes one step into an object or a list.
func member(value json.RawMessage, name string) (json.RawMessage, bool, error) {
	switch first(value) {
	case '{':
		var object map[string]json.RawMessage
		if err := json.Unmarshal(value, &object); err != nil {
			return nil, false, fmt.Errorf("the context is not valid JSON: %w", err)
		}
		v, ok := object[name]
		return v, ok, nil
	case '[':
		var list []json.RawMessage
		if err := json.Unmarshal(value, &list); err != nil {
			return nil, false, fmt.Errorf("the context is not valid JSON: %w", err)
		}
		i, err := strconv.Atoi(name)
		if err != nil || i < 0 || i >= len(list) || (len(name) > 1 && name[0] == '0') {
			return nil, false, nil //nolint:nilerr // a name that is no index names nothing
		}
		return list[i], true, nil
	}
	return nil, false, nil
}

// first is the first byte of a JSON value, which tells its kind.
func first(value json.RawMessage) byte {
	if len(value) == 0 {
		return 0
	}
	return value[0]
}

// kindOf names a JSON value's kind for people.
func kindOf(value json.RawMessage) string {
	switch first(value) {
	case '{':
		return "a map"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	case 0:
		return "nothing"
	}
	return "a number"
}

// collection takes a for_each's items apart: a list in order, a map by key, in
// the keys' order. None for an absent or null value.
func collection(p Payload, pointer *definition.Pointer) ([]element, error) {
	value, ok, err := lookup(p, pointer)
	if err != nil || !ok {
		return nil, err
	}
	switch first(value) {
	case '[':
		var list []json.RawMessage
		if err := json.Unmarshal(value, &list); err != nil {
			return nil, fmt.Errorf("the context is not valid JSON: %w", err)
		}
		elements := make([]element, len(list))
		for i, v := range list {
			elements[i] = element{value: v}
		}
		return elements, nil
	case '{':
		return mapElements(value)
	case 'n':
		return nil, nil
	}
	return nil, fmt.Errorf("found %s, want a list or a map", kindOf(value))
}

func mapElements(value json.RawMessage) ([]element, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(value, &object); err != nil {
		return nil, fmt.Errorf("the context is not valid JSON: %w", err)
	}
	elements := make([]element, 0, len(object))
	for key, v := range object {
		if strings.ContainsRune(key, 0) {
			return nil, fmt.Errorf("found a map whose key %q holds a NUL character, which cannot be stored", key)
		}
		elements = append(elements, element{key: key, value: v})
	}
	slices.SortFunc(elements, func(a, b element) int { return strings.Compare(a.key, b.key) })
	return elements, nil
}

// Instants outside these years are refused: no store keeps them.
const (
	minYear = 1
	maxYear = 9999
)

// instant reads the instant of a sleep: an RFC 3339 string or seconds since 1970.
func instant(p Payload, pointer *definition.Pointer) (time.Time, error) {
	value, ok, err := lookup(p, pointer)
	if err != nil {
		return time.Time{}, err
	}
	const want = "want an RFC 3339 time or a number of seconds since 1970"
	if !ok {
		return time.Time{}, fmt.Errorf("found nothing, %s", want)
	}
	var at time.Time
	switch kind := kindOf(value); kind {
	case "a string":
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			return time.Time{}, fmt.Errorf("the context is not valid JSON: %w", err)
		}
		if at, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return time.Time{}, fmt.Errorf("found the string %.40q, %s", text, want)
		}
	case "a number":
		if at, err = fromSeconds(string(value)); err != nil {
			return time.Time{}, fmt.Errorf("found the number %.40s, %s", value, want)
		}
	default:
		return time.Time{}, fmt.Errorf("found %s, %s", kind, want)
	}
	if y := at.UTC().Year(); y < minYear || y > maxYear {
		return time.Time{}, fmt.Errorf("found a time in the year %d, want one from %d to %d", y, minYear, maxYear)
	}
	return at.UTC(), nil
}

// fromSeconds reads seconds since 1970 without losing fractions to a float.
func fromSeconds(text string) (time.Time, error) {
	const maxDigits, maxExponent = 40, 30
	mantissa, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	if n, err := strconv.Atoi(exponent); exponent != "" && (err != nil || n > maxExponent || n < -maxExponent) {
		return time.Time{}, strconv.ErrRange
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok || len(mantissa) > maxDigits {
		return time.Time{}, strconv.ErrRange
	}
	nanos := new(big.Int).Quo(new(big.Int).Mul(r.Num(), big.NewInt(int64(time.Second))), r.Denom())
	seconds, rest := new(big.Int).DivMod(nanos, big.NewInt(int64(time.Second)), new(big.Int))
	if !seconds.IsInt64() || seconds.BitLen() > 40 {
		return time.Time{}, strconv.ErrRange
	}
	return time.Unix(seconds.Int64(), rest.Int64()), nil
}
