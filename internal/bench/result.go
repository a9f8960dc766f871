package bench

import (
	"time"

	"github.com/wiggle-run/wiggle/internal/bench/pgmeter"
	"github.com/wiggle-run/wiggle/internal/bench/procfs"
)

// Result is what came of a scenario, and of everything that a reader needs to judge it (PRF-7).
type Result struct {
	Scenario string `json:"scenario"`
	Mode     string `json:"mode"`
	// Run is the best of Runs.
	Run

	// Limit is null where it was not measured.
	Limit *float64 `json:"limit_steps_per_second"`
	// Ratio is StepsPerSecond by Limit.
	Ratio *float64 `json:"ratio_to_limit"`

	Date     time.Time `json:"date"`
	Commit   string    `json:"commit"`
	Machine  Machine   `json:"machine"`
	Settings Settings  `json:"settings"`
	// Runs has the median of each point of a sweep.
	Runs []Run `json:"runs,omitempty"`
	// TracedBytes is how much the services exported of traces, where they were to.
	TracedBytes int64 `json:"traced_bytes,omitempty"`
	// Problems are what went wrong, the first few.
	Problems []string `json:"problems,omitempty"`
}

// Machine is what figures were taken on.
type Machine = procfs.Machine

// Run is the measurement of one point: a load of one kind.
type Run struct {
	InFlight     int     `json:"in_flight"`
	PayloadBytes int     `json:"payload_bytes"`
	Rate         float64 `json:"rate,omitempty"`

	StepsPerSecond     float64 `json:"steps_per_second"`
	InstancesPerSecond float64 `json:"instances_per_second"`
	P50                float64 `json:"p50_ms"`
	P95                float64 `json:"p95_ms"`
	P99                float64 `json:"p99_ms"`
	// Completed instances within Seconds; Errors are instances that were not started or did not complete, at any time.
	Completed int64   `json:"completed"`
	Errors    int64   `json:"errors"`
	Seconds   float64 `json:"seconds"`

	// CPUSeconds by process, and what of it each step took.
	CPUSeconds map[string]float64 `json:"cpu_seconds"`
	CPUPerStep map[string]float64 `json:"cpu_us_per_step,omitempty"`

	// These are null where the databases are out of reach, or no step completed.
	CommitsPerStep  *float64 `json:"commits_per_step"`
	WALBytesPerStep *float64 `json:"wal_bytes_per_step"`
	// RowVersionsPerStep are rows inserted and updated; HotRatio is how many of the updates stayed within their page.
	RowVersionsPerStep *float64           `json:"row_versions_per_step"`
	HotRatio           *float64           `json:"hot_ratio"`
	Tables             map[string]RowRate `json:"rows_per_step_by_table,omitempty"`

	// Details are figures of the scenario's own.
	Details map[string]float64 `json:"details,omitempty"`
	// Minutes and Looks are what a long run was like as it went on.
	Minutes []Minute `json:"minutes,omitempty"`
	Looks   []Look   `json:"looks,omitempty"`

	steps    int64 // that completed
	problems []string
}

// RowRate is what happens to the rows of a table for each step.
type RowRate struct {
	Inserted   float64 `json:"inserted"`
	Updated    float64 `json:"updated"`
	HotUpdated float64 `json:"hot_updated"`
	Deleted    float64 `json:"deleted"`
}

// Settings are under what conditions a figure was taken.
type Settings struct {
	FSync             string             `json:"fsync,omitempty"`
	SynchronousCommit string             `json:"synchronous_commit,omitempty"`
	SharedBuffers     string             `json:"shared_buffers,omitempty"`
	Server            string             `json:"server,omitempty"`
	Shards            int                `json:"shards,omitempty"`
	Instances         int                `json:"instances_processes,omitempty"`
	Workers           int                `json:"worker_processes"`
	With              []string           `json:"with,omitempty"`
	TraceRatio        float64            `json:"trace_ratio,omitempty"`
	Concurrency       int                `json:"worker_concurrency"`
	Steps             int                `json:"steps,omitempty"`
	Width             int                `json:"width,omitempty"`
	Count             int                `json:"count,omitempty"`
	Warmup            float64            `json:"warmup_seconds"`
	Repeat            int                `json:"repeat"`
	Postgres          map[string]string  `json:"postgres,omitempty"`
	Environment       map[string]string  `json:"environment,omitempty"`
	LimitRounds       []float64          `json:"limit_rounds,omitempty"`
	Spread            map[string]float64 `json:"spread,omitempty"`
}

// Well tells whether everything that was begun has completed.
func (r *Result) Well() bool {
	for _, run := range r.Runs {
		if run.Errors > 0 {
			return false
		}
	}
	return r.Errors == 0 && len(r.Problems) == 0
}

// maxProblems bounds how many problems are told one by one.
const maxProblems = 5

func (r *Run) problem(text string) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, text)
	}
}

func (r *Run) detail(name string, value float64) {
	if r.Details == nil {
		r.Details = map[string]float64{}
	}
	r.Details[name] = value
}

// detailQuantiles adds NAME_p50_ms, NAME_p99_ms.
func (r *Run) detailQuantiles(name string, values []time.Duration) {
	if len(values) == 0 {
		return
	}
	q := quantilesOf(values)
	r.detail(name+"_p50_ms", millis(q.p50))
	r.detail(name+"_p99_ms", millis(q.p99))
}

// detailMemory adds memory_KIND_PROCESS_mib.
func (r *Run) detailMemory(kind string, held map[string]int64) {
	for name, bytes := range held {
		r.detail("memory_"+kind+"_"+name+"_mib", mebibytes(bytes))
	}
}

func mebibytes(bytes int64) float64 { return round(float64(bytes)/(1<<20), 1) }

// setLatency sets the percentiles; it sorts the values.
func (r *Run) setLatency(values []time.Duration) {
	q := quantilesOf(values)
	r.P50, r.P95, r.P99 = millis(q.p50), millis(q.p95), millis(q.p99)
}

// setRate sets how much was completed in how long.
func (r *Run) setRate(instances, steps int64, took time.Duration) {
	r.Completed, r.steps, r.Seconds = instances, steps, round(took.Seconds(), 3)
	if took > 0 {
		r.InstancesPerSecond = round(float64(instances)/took.Seconds(), 1)
		r.StepsPerSecond = round(float64(steps)/took.Seconds(), 1)
	}
}

// setCosts divides what was spent between two samples by the steps.
func (r *Run) setCosts(before, after sample) {
	r.CPUSeconds = map[string]float64{}
	for name, seconds := range after.cpu {
		r.CPUSeconds[name] = round(seconds-before.cpu[name], 2)
	}
	if r.steps == 0 {
		return
	}
	per := func(n int64) float64 { return round(float64(n)/float64(r.steps), 4) }
	r.CPUPerStep = map[string]float64{}
	for name, seconds := range r.CPUSeconds {
		r.CPUPerStep[name] = round(1e6*seconds/float64(r.steps), 1)
	}
	if !before.db.Known || !after.db.Known {
		return
	}
	commits, wal := per(after.db.Commits-before.db.Commits), per(after.db.WAL-before.db.WAL)
	r.CommitsPerStep, r.WALBytesPerStep = &commits, &wal
	var all pgmeter.RowCounts
	r.Tables = map[string]RowRate{}
	for name, counts := range after.db.Rows {
		c := counts.Minus(before.db.Rows[name])
		if c == (pgmeter.RowCounts{}) {
			continue
		}
		all = all.Plus(c)
		r.Tables[name] = RowRate{per(c.Inserted), per(c.Updated), per(c.Hot), per(c.Deleted)}
	}
	versions := per(all.Inserted + all.Updated)
	r.RowVersionsPerStep = &versions
	if all.Updated > 0 {
		hot := round(float64(all.Hot)/float64(all.Updated), 4)
		r.HotRatio = &hot
	}
}
