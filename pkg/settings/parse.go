package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
	day = 24 * time.Hour

	redacted = "[hidden]"
)

// Secret is a text that prints, logs and marshals as a placeholder.
type Secret string

// Reveal returns the text.
func (s Secret) Reveal() string { return string(s) }

// String returns a placeholder, or nothing if there is no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString is String, for %#v.
func (s Secret) GoString() string { return s.String() }

// LogValue logs the placeholder.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText marshals the placeholder.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func parseText(s *setting, text string) (string, error) { return text, s.allowed(text) }

func parseSecret(_ *setting, text string) (Secret, error) { return Secret(text), nil }

func parseList(s *setting, text string) ([]string, error) {
	var list []string
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		if err := s.allowed(entry); err != nil {
			return nil, err
		}
		list = append(list, entry)
	}
	return list, nil
}

func parseInts(s *setting, text string) ([]int, error) {
	entries, err := parseList(s, text)
	if err != nil {
		return nil, err
	}
	list := make([]int, 0, len(entries))
	for _, entry := range entries {
		n, err := strconv.Atoi(entry)
		if err != nil {
			return nil, fmt.Errorf("has %q, which is not a whole number", entry)
		}
		if err := s.inRange(float64(n), entry); err != nil {
			return nil, fmt.Errorf("has an entry that %w", err)
		}
		list = append(list, n)
	}
	return list, nil
}

func parseBool(_ *setting, text string) (bool, error) {
	switch strings.ToLower(text) {
	case "true", "on", "yes", "1":
		return true, nil
	case "false", "off", "no", "0":
		return false, nil
	}
	return false, fmt.Errorf("is %q; use true or false", text)
}

func parseInt(s *setting, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("is %q, which is not a whole number", text)
	}
	return n, s.inRange(float64(n), text)
}

func parseFloat(s *setting, text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, fmt.Errorf("is %q, which is not a number", text)
	}
	return f, s.inRange(f, text)
}

func parseBytes(s *setting, text string) (int64, error) {
	digits, factor := text, int64(1)
	for suffix, f := range map[string]int64{"KiB": kib, "MiB": mib, "GiB": gib} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			digits, factor = strings.TrimSpace(rest), f
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64/factor || n < math.MinInt64/factor {
		return 0, fmt.Errorf("is %q; use a number of bytes, such as 1048576, or 512KiB, 2MiB, 1GiB", text)
	}
	return n * factor, s.inRange(float64(n*factor), text)
}

func parseDuration(s *setting, text string) (time.Duration, error) {
	d, err := durationOf(s.row.Name, text)
	if err != nil {
		return 0, err
	}
	return d, s.inRange(float64(d), text)
}

// durationOf reads a duration in the unit of the setting's name.
func durationOf(name, text string) (time.Duration, error) {
	if unit, label := nameUnit(name); unit != 0 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n > math.MaxInt64/int64(unit) || n < math.MinInt64/int64(unit) {
			return 0, fmt.Errorf("is %q; use a whole number of %s", text, label)
		}
		return time.Duration(n) * unit, nil
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 64)
		if err == nil && n >= 0 && n < math.MaxInt64/int64(day) {
			return time.Duration(n) * day, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("is %q; use a duration such as 500ms, 90s, 15m, 36h or 7d", text)
	}
	return d, nil
}

// nameUnit returns the unit that a name ends in, 0 if in none.
func nameUnit(name string) (unit time.Duration, label string) {
	switch {
	case strings.HasSuffix(name, "_MILLIS"):
		return time.Millisecond, "milliseconds"
	case strings.HasSuffix(name, "_SECONDS"):
		return time.Second, "seconds"
	}
	return 0, ""
}

func durationUnit(name string) string {
	_, label := nameUnit(name)
	return label
}

// formatDuration writes a duration as the setting is written.
func formatDuration(name string, d time.Duration) string {
	if unit, _ := nameUnit(name); unit != 0 {
		return strconv.FormatInt(int64(d/unit), 10)
	}
	if d >= day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := d.String()
	if rest, ok := strings.CutSuffix(text, "m0s"); ok {
		text = rest + "m"
	}
	if rest, ok := strings.CutSuffix(text, "h0m"); ok {
		text = rest + "h"
	}
	return text
}

func formatBytes(n int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{gib, "GiB"}, {mib, "MiB"}, {kib, "KiB"}} {
		if n >= unit.size && n%unit.size == 0 {
			return strconv.FormatInt(n/unit.size, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}

func numberBound(value float64) *bound {
	return &bound{value: value, text: strconv.FormatFloat(value, 'f', -1, 64)}
}

// allowed checks a text against OneOf.
func (s *setting) allowed(text string) error {
	if len(s.oneOf) == 0 || slices.Contains(s.oneOf, text) {
		return nil
	}
	return fmt.Errorf("is %q; use %s", text, strings.Join(s.oneOf, ", "))
}

// inRange checks a number; without a lower bound it must not be negative.
func (s *setting) inRange(value float64, text string) error {
	switch {
	case s.low == nil && value < 0:
		return fmt.Errorf("is %s; it must not be negative", text)
	case s.low != nil && value < s.low.value, s.high != nil && value > s.high.value:
		return errors.New("is " + text + "; allowed is " + s.rangeText())
	}
	return nil
}

// rangeText says what a setting allows, nothing if there is nothing to say.
func (s *setting) rangeText() string {
	switch {
	case s.low != nil && s.high != nil:
		return s.low.text + " to " + s.high.text
	case s.low != nil:
		return "at least " + s.low.text
	}
	return ""
}
