package schedule

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// cron is an expression: which minutes, hours, days, months and weekdays it names, a bit each.
type cron struct {
	minutes, hours, days, months, weekdays uint64
	// anyDay and anyWeekday tell that the field is a bare star. Where neither is, a day that one of them names is enough.
	anyDay, anyWeekday bool
}

// maxYears is how far ahead a time is looked for: no 29 February is further from the one before.
const maxYears = 8

// field is one of the five.
type field struct {
	name     string
	min, max int
	names    []string // of the values from min on
}

func fields() [5]field {
	return [5]field{
		{name: "minute", max: 59},
		{name: "hour", max: 23},
		{name: "day of month", min: 1, max: 31},
		{name: "month", min: 1, max: 12, names: []string{
			"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
		}},
		{name: "day of week", max: 7, names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
	}
}

// shorthand is what a word that begins with @ stands for.
func shorthand(word string) (string, bool) {
	expression, ok := map[string]string{
		"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *",
	}[strings.ToLower(word)]
	return expression, ok
}

// parseCron reads an expression, and says everything that is wrong with it.
func parseCron(expression string) (*cron, []string) {
	words := strings.Fields(expression)
	if len(words) == 1 && strings.HasPrefix(words[0], "@") {
		long, ok := shorthand(words[0])
		if !ok {
			return nil, []string{fmt.Sprintf("%.32q is none of @hourly, @daily, @weekly, @monthly and @yearly", words[0])}
		}
		words = strings.Fields(long)
	}
	if len(words) != len(fields()) {
		//nolint:dupword // the day of month, and the month
		return nil, []string{fmt.Sprintf(
			"has %d fields; want five: minute, hour, day of month, month, day of week, such as 30 2 * * mon-fri", len(words))}
	}
	var sets [5]uint64
	var problems []string
	for i, f := range fields() {
		set, problem := f.parse(words[i])
		if problem != "" {
			problems = append(problems, fmt.Sprintf("%s %.64q: %s", f.name, words[i], problem))
		}
		sets[i] = set
	}
	if problems != nil {
		return nil, problems
	}
	if sets[4]>>7&1 == 1 { // 7 is Sunday too
		sets[4] = sets[4]&^(1<<7) | 1
	}
	c := &cron{
		minutes: sets[0], hours: sets[1], days: sets[2], months: sets[3], weekdays: sets[4],
		anyDay: words[2] == "*", anyWeekday: words[4] == "*",
	}
	if _, ok := c.next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); !ok {
		return nil, []string{"names no day that there is: such a month has no such day"}
	}
	return c, nil
}

// parse reads a field: a list of stars, values and ranges, the latter and stars with a step.
func (f field) parse(text string) (set uint64, problem string) {
	for part := range strings.SplitSeq(text, ",") {
		more, problem := f.parsePart(part)
		if problem != "" {
			return 0, problem
		}
		set |= more
	}
	return set, ""
}

func (f field) parsePart(part string) (set uint64, problem string) {
	span, stepText, stepped := strings.Cut(part, "/")
	low, high, problem := f.parseSpan(span)
	if problem != "" {
		return 0, problem
	}
	step := 1
	if stepped {
		if span != "*" && !strings.Contains(span, "-") {
			return 0, fmt.Sprintf("a step goes with * or a range: %.16s-%d/%.16s", span, f.last(), stepText)
		}
		if step, problem = number(stepText, 1, f.last()); problem != "" {
			return 0, "step " + problem
		}
	}
	for v := low; v <= high; v += step {
		set |= 1 << v
	}
	return set, ""
}

// parseSpan reads what stands before a step.
func (f field) parseSpan(span string) (low, high int, problem string) {
	if span == "*" {
		return f.min, f.last(), ""
	}
	first, second, isRange := strings.Cut(span, "-")
	if low, problem = f.value(first); problem != "" {
		return 0, 0, problem
	}
	if !isRange {
		return low, low, ""
	}
	if high, problem = f.value(second); problem != "" {
		return 0, 0, problem
	}
	if high == 0 && low > 0 && f.max == 7 && strings.EqualFold(second, "sun") {
		high = 7 // sat-sun
	}
	if high < low {
		return 0, 0, fmt.Sprintf("the range %.32s ends before it begins; write two, with a comma between", span)
	}
	return low, high, ""
}

// last is the highest value of a star: a week has seven days, though 7 is one of them.
func (f field) last() int {
	if f.max == 7 {
		return 6
	}
	return f.max
}

func (f field) value(text string) (v int, problem string) {
	for i, name := range f.names {
		if strings.EqualFold(text, name) {
			return f.min + i, ""
		}
	}
	return number(text, f.min, f.max)
}

// number reads a number of at most two digits.
func number(text string, low, high int) (n int, problem string) {
	n, err := strconv.Atoi(text)
	if err != nil || len(text) > 2 || text[0] < '0' || text[0] > '9' || n < low || n > high {
		return 0, fmt.Sprintf("%.16q is not a number from %d to %d", text, low, high)
	}
	return n, ""
}

// next is the first time at or after wall that the expression names. Both are what a clock on the wall shows, written as
// if it hung in UTC, in whole minutes.
func (c *cron) next(wall time.Time) (time.Time, bool) {
	day := time.Date(wall.Year(), wall.Month(), wall.Day(), 0, 0, 0, 0, time.UTC)
	from := wall.Hour()*60 + wall.Minute()
	for last := wall.Year() + maxYears; day.Year() <= last; from = 0 {
		if c.months>>day.Month()&1 == 0 {
			day = time.Date(day.Year(), day.Month()+1, 1, 0, 0, 0, 0, time.UTC)
			continue
		}
		if c.onDay(day) {
			if minute, ok := c.minuteFrom(from); ok {
				return day.Add(time.Duration(minute) * time.Minute), true
			}
		}
		day = day.AddDate(0, 0, 1)
	}
	return time.Time{}, false
}

func (c *cron) onDay(day time.Time) bool {
	named, onWeekday := c.days>>day.Day()&1 == 1, c.weekdays>>day.Weekday()&1 == 1
	if c.anyDay || c.anyWeekday {
		return named && onWeekday
	}
	return named || onWeekday
}

// minuteFrom is the first minute of a day that the expression names, from one on.
func (c *cron) minuteFrom(from int) (minute int, ok bool) {
	for hour, first := from/60, from%60; hour < 24; hour, first = hour+1, 0 {
		if rest := c.minutes >> first; c.hours>>hour&1 == 1 && rest != 0 {
			return hour*60 + first + bits.TrailingZeros64(rest), true
		}
	}
	return 0, false
}
