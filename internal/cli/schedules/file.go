package schedules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// document is what `wiggle schedules get -o json` prints, and what `put -f` reads; of that, what became of the schedule is
// left aside.
type document struct {
	ID       string          `json:"id"`
	Cron     string          `json:"cron,omitempty"`
	TimeZone string          `json:"time_zone,omitempty"`
	Every    string          `json:"every,omitempty"`
	Offset   string          `json:"offset,omitempty"`
	Workflow string          `json:"workflow"`
	Version  int             `json:"version,omitempty"`
	Input    json.RawMessage `json:"input,omitempty"`
	// InputType is set where the input is not JSON, but bytes in base64.
	InputType string     `json:"input_content_type,omitempty"`
	Priority  *int       `json:"priority,omitempty"`
	Jitter    string     `json:"jitter,omitempty"`
	StartAt   *time.Time `json:"start_at,omitempty"`
	EndAt     *time.Time `json:"end_at,omitempty"`
	CatchUp   string     `json:"catch_up,omitempty"`
	Overlap   string     `json:"overlap,omitempty"`
	Paused    bool       `json:"paused"`

	Created        *bool       `json:"created,omitempty"`
	Namespace      string      `json:"namespace,omitempty"`
	NextAt         *time.Time  `json:"next_at,omitempty"`
	LastAt         *time.Time  `json:"last_at,omitempty"`
	LastInstanceID string      `json:"last_instance_id,omitempty"`
	Fired          int64       `json:"fired"`
	Skipped        int64       `json:"skipped"`
	Missed         int64       `json:"missed"`
	Problem        string      `json:"problem,omitempty"`
	QueuedAt       *time.Time  `json:"queued_at,omitempty"`
	CreatedAt      *time.Time  `json:"created_at,omitempty"`
	UpdatedAt      *time.Time  `json:"updated_at,omitempty"`
	Upcoming       []time.Time `json:"upcoming,omitempty"`
}

func toDocument(s *wiggle.KeptSchedule) document {
	out := document{
		ID: s.ID, Cron: s.Cron, TimeZone: s.TimeZone, Every: durationText(s.Every), Offset: durationText(s.Offset),
		Workflow: s.Workflow, Version: s.Version, Priority: s.Priority, Jitter: durationText(s.Jitter),
		StartAt: shell.TimeJSON(s.StartAt), EndAt: shell.TimeJSON(s.EndAt), CatchUp: durationText(s.CatchUp),
		Overlap: strings.ToLower(s.Overlap.String()), Paused: s.Paused,
		Namespace: s.Namespace, NextAt: shell.TimeJSON(s.NextAt), LastAt: shell.TimeJSON(s.LastAt), LastInstanceID: s.LastInstanceID,
		Fired: s.Fired, Skipped: s.Skipped, Missed: s.Missed, Problem: s.Problem, QueuedAt: shell.TimeJSON(s.QueuedAt),
		CreatedAt: shell.TimeJSON(s.CreatedAt), UpdatedAt: shell.TimeJSON(s.UpdatedAt),
	}
	if input, ok := s.Input.(wiggle.Payload); ok {
		if out.Input = input.Data; !json.Valid(input.Data) {
			out.InputType = input.ContentType
			out.Input, _ = json.Marshal(input.Data) // a slice of bytes is a string in base64
		}
	}
	for _, t := range s.Upcoming {
		out.Upcoming = append(out.Upcoming, t.UTC())
	}
	return out
}

// putFlags are those of `wiggle schedules put`.
type putFlags struct {
	file, cron, timeZone    string
	every, offset           time.Duration
	workflow, input         string
	version, priority       int
	jitter, catchUp         time.Duration
	startAt, endAt, overlap string
	paused                  bool
}

func (f *putFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.file, "file", "f", "", "`FILE` with the schedule, in YAML or JSON; - for standard input")
	flags.StringVar(&f.cron, "cron", "", "`EXPRESSION` whose times are due, such as \"30 2 * * mon-fri\"")
	flags.StringVar(&f.timeZone, "time-zone", "", "time zone of --cron, such as Europe/Berlin (default UTC)")
	flags.DurationVar(&f.every, "every", 0, "distance of due times, counted from 1970-01-01T00:00:00Z")
	flags.DurationVar(&f.offset, "offset", 0, "what to add to each time of --every")
	flags.StringVarP(&f.workflow, "workflow", "w", "", "workflow to start")
	flags.IntVar(&f.version, "version", 0, "version to start (default the latest at the due time)")
	flags.StringVarP(&f.input, "input", "i", "", "the input: `JSON`, @FILE, or - for standard input (default null)")
	flags.IntVar(&f.priority, "priority", 5, "priority, 0 (lowest) to 9")
	flags.DurationVar(&f.jitter, "jitter", 0, "put each due time off by a random part of this")
	flags.StringVar(&f.startAt, "start-at", "", "no due time before this `TIME`")
	flags.StringVar(&f.endAt, "end-at", "", "no due time at or after this `TIME`")
	flags.DurationVar(&f.catchUp, "catch-up", 0, "how late a due time may be fired when nobody could at its time (default 1m)")
	flags.StringVar(&f.overlap, "overlap", "",
		"while the instance before still runs: skip, queue_one, allow or cancel_running (default skip)")
	flags.BoolVar(&f.paused, "paused", false, "make it without letting it fire; see wiggle schedules resume")
}

// schedule is what a command line says: the file, and the flags that were given.
func (f *putFlags) schedule(p *program, cmd *cobra.Command, args []string) (wiggle.Schedule, error) {
	var d document
	if f.file != "" {
		text, err := p.ReadFile(f.file)
		if err != nil {
			return wiggle.Schedule{}, shell.Failed("read the schedule: %v", err)
		}
		if d, err = parseSchedule(text); err != nil {
			name := f.file
			if name == "-" {
				name = "standard input"
			}
			return wiggle.Schedule{}, shell.Failed("%s: %v", name, err)
		}
	}
	if len(args) > 0 {
		d.ID = args[0]
	}
	if d.ID == "" {
		return wiggle.Schedule{}, shell.Usage(cmd, errNoID)
	}
	if err := f.apply(p, cmd, &d); err != nil {
		return wiggle.Schedule{}, err
	}
	s, err := d.schedule()
	if err != nil {
		return wiggle.Schedule{}, shell.Usage(cmd, err)
	}
	return s, nil
}

// parseSchedule reads a file's text.
func parseSchedule(text []byte) (document, error) {
	var d document
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		var err error
		if text, err = yaml.YAMLToJSON(text); err != nil {
			return d, fmt.Errorf("not YAML: %w", err)
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		return d, fmt.Errorf("no schedule: %w", err)
	}
	return d, nil
}

// apply puts the flags that were given over what a file says.
func (f *putFlags) apply(p *program, cmd *cobra.Command, d *document) error {
	given := cmd.Flags().Changed
	if given("cron") && given("every") {
		return shell.Usage(cmd, errors.New("--cron and --every: a schedule has one of them"))
	}
	if given("cron") {
		d.Cron, d.Every, d.Offset = f.cron, "", ""
	}
	if given("every") {
		d.Every, d.Cron, d.TimeZone = f.every.String(), "", ""
	}
	for name, to := range map[string]struct {
		field *string
		value string
	}{
		"time-zone": {&d.TimeZone, f.timeZone}, "offset": {&d.Offset, f.offset.String()}, "workflow": {&d.Workflow, f.workflow},
		"jitter": {&d.Jitter, f.jitter.String()}, "catch-up": {&d.CatchUp, f.catchUp.String()}, "overlap": {&d.Overlap, f.overlap},
	} {
		if given(name) {
			*to.field = to.value
		}
	}
	if given("version") {
		d.Version = f.version
	}
	if given("priority") {
		d.Priority = &f.priority
	}
	if given("paused") {
		d.Paused = f.paused
	}
	return f.applyValues(p, cmd, d)
}

// applyValues does so for flags that have to be read.
func (f *putFlags) applyValues(p *program, cmd *cobra.Command, d *document) error {
	given := cmd.Flags().Changed
	if given("input") {
		input, err := p.ReadInput(cmd, f.input)
		if err != nil {
			return err
		}
		if raw, ok := input.(json.RawMessage); ok {
			d.Input, d.InputType = raw, ""
		}
	}
	for name, to := range map[string]struct {
		field **time.Time
		text  string
	}{"start-at": {&d.StartAt, f.startAt}, "end-at": {&d.EndAt, f.endAt}} {
		if !given(name) {
			continue
		}
		t, err := p.timeAt(to.text)
		if err != nil {
			return shell.Usage(cmd, fmt.Errorf("--%s: %w", name, err))
		}
		*to.field = shell.TimeJSON(t)
	}
	return nil
}

// timeAt reads a point in time; empty is none.
func (p *program) timeAt(text string) (time.Time, error) {
	if _, err := time.ParseDuration(text); err == nil {
		return time.Time{}, fmt.Errorf("%q is no time: use 2026-10-01, or 2026-10-01T09:00:00Z", text)
	}
	return p.Instant(text)
}

// schedule is a document as the SDK has it.
func (d *document) schedule() (wiggle.Schedule, error) {
	s := wiggle.Schedule{
		ID: d.ID, Cron: d.Cron, TimeZone: d.TimeZone, Workflow: d.Workflow, Version: d.Version, Priority: d.Priority, Paused: d.Paused,
	}
	switch {
	case d.InputType != "":
		payload := wiggle.Payload{ContentType: d.InputType}
		if err := json.Unmarshal(d.Input, &payload.Data); err != nil {
			return s, fmt.Errorf("input: want base64 of %s: %w", d.InputType, err)
		}
		s.Input = payload
	case len(d.Input) > 0:
		s.Input = d.Input
	}
	for name, to := range map[string]struct {
		field *time.Duration
		text  string
	}{"every": {&s.Every, d.Every}, "offset": {&s.Offset, d.Offset}, "jitter": {&s.Jitter, d.Jitter}, "catch_up": {&s.CatchUp, d.CatchUp}} {
		if to.text == "" {
			continue
		}
		value, err := time.ParseDuration(to.text)
		if err != nil {
			return s, fmt.Errorf("%s %q is no duration: use 30s, 5m or 24h", name, to.text)
		}
		*to.field = value
	}
	if d.StartAt != nil {
		s.StartAt = *d.StartAt
	}
	if d.EndAt != nil {
		s.EndAt = *d.EndAt
	}
	if s.Workflow == "" {
		return s, errors.New("say which workflow it starts: --workflow NAME")
	}
	var err error
	s.Overlap, err = overlapOf(d.Overlap)
	return s, err
}

// overlapOf reads a policy, in any case and with either dash.
func overlapOf(text string) (wiggle.Overlap, error) {
	if text == "" {
		return 0, nil
	}
	policies := []wiggle.Overlap{wiggle.OverlapSkip, wiggle.OverlapQueueOne, wiggle.OverlapAllow, wiggle.OverlapCancelRunning}
	names := make([]string, len(policies))
	for i, policy := range policies {
		names[i] = strings.ToLower(policy.String())
		if strings.EqualFold(strings.ReplaceAll(text, "-", "_"), names[i]) {
			return policy, nil
		}
	}
	return 0, fmt.Errorf("overlap %q: use one of %s", text, strings.Join(names, ", "))
}
