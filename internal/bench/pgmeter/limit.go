package pgmeter

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

// The limit, as PRF-6 has it.
const (
	// LimitRows and LimitRounds are for a [LimitConfig].
	LimitRows        = 100_000
	limitBatch       = 100
	limitConnections = 4
	LimitRounds      = 3
	limitDataBytes   = 200
	limitDatabase    = "wiggle_bench_limit"
)

var (
	//go:embed limit.sql
	limitTables string
	//go:embed limit_step.sql
	limitStep string
)

// LimitConfig says how long the limit is measured. PRF-6: LimitRows, LimitRounds of 10 s.
type LimitConfig struct {
	Rows, Rounds     int
	Duration, Warmup time.Duration
}

// Limit is in steps per second: the median, and each round.
type Limit struct {
	Median float64
	Rounds []float64
}

// MeasureLimit measures on a database of its own on the server of adminURL, and drops it.
func MeasureLimit(ctx context.Context, adminURL string, cfg LimitConfig) (_ Limit, err error) {
	admin, err := openPool(ctx, "limit", adminURL, 1)
	if err != nil {
		return Limit{}, err
	}
	defer admin.Close()
	name := quoteIdentifier(limitDatabase)
	if err := execAll(ctx, admin, "drop database if exists "+name+" with (force)", "create database "+name); err != nil {
		return Limit{}, fmt.Errorf("prepare the limit: %w", err)
	}
	defer func() {
		drop := execAll(context.WithoutCancel(ctx), admin, "drop database if exists "+name+" with (force)", "checkpoint")
		if err == nil && drop != nil {
			err = fmt.Errorf("clear the limit away: %w", drop)
		}
	}()
	own, err := otherDatabase(adminURL, limitDatabase)
	if err != nil {
		return Limit{}, err
	}
	pool, err := openPool(ctx, "limit", own, limitConnections)
	if err != nil {
		return Limit{}, err
	}
	defer pool.Close()
	return runLimit(ctx, pool, cfg)
}

func execAll(ctx context.Context, pool *postgres.Pool, statements ...string) error {
	for _, sql := range statements {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// runLimit measures on an empty database.
func runLimit(ctx context.Context, pool *postgres.Pool, cfg LimitConfig) (Limit, error) {
	var result Limit
	for sql := range strings.SplitSeq(limitTables, ";") {
		if strings.TrimSpace(sql) == "" {
			continue
		}
		if _, err := pool.Exec(ctx, sql); err != nil {
			return result, fmt.Errorf("make the tables of the limit: %w", err)
		}
	}
	_, err := pool.Exec(ctx, "insert into a select i, repeat('x', $1::int), 0, now() from generate_series(0, $2::int - 1) i",
		limitDataBytes, cfg.Rows)
	if err == nil {
		err = execAll(ctx, pool, "vacuum analyze a", "vacuum analyze b", "checkpoint")
	}
	if err != nil {
		return result, fmt.Errorf("fill the tables of the limit: %w", err)
	}
	if _, err := limitRound(ctx, pool, cfg.Rows, cfg.Warmup); err != nil {
		return result, err
	}
	for range cfg.Rounds {
		rate, err := limitRound(ctx, pool, cfg.Rows, cfg.Duration)
		if err != nil {
			return result, err
		}
		result.Rounds = append(result.Rounds, math.Round(rate))
	}
	sorted := slices.Sorted(slices.Values(result.Rounds))
	result.Median = sorted[(len(sorted)-1)/2]
	return result, nil
}

// limitRound returns steps per second over the time given.
func limitRound(ctx context.Context, pool *postgres.Pool, rows int, d time.Duration) (float64, error) {
	began := time.Now()
	until := began.Add(d)
	steps, errs := make([]int, limitConnections), make([]error, limitConnections)
	var wg sync.WaitGroup
	for i := range limitConnections {
		first, end := rows*i/limitConnections, rows*(i+1)/limitConnections
		wg.Go(func() { steps[i], errs[i] = limitLoop(ctx, pool, first, end, until) })
	}
	wg.Wait()
	total := 0
	for i := range limitConnections {
		if errs[i] != nil {
			return 0, fmt.Errorf("measure the limit: %w", errs[i])
		}
		total += steps[i]
	}
	return float64(total) / time.Since(began).Seconds(), nil
}

// limitLoop takes the keys from first up to end in an order without order, a batch at a time, again and again: tokens that
// move together do not lie together either. No key comes twice in a statement.
func limitLoop(ctx context.Context, pool *postgres.Pool, first, end int, until time.Time) (int, error) {
	ids, data := make([]int64, limitBatch), make([]string, limitBatch)
	text := strings.Repeat("y", limitDataBytes)
	keys := rand.New(rand.NewPCG(uint64(first), uint64(end))).Perm(end - first) //nolint:gosec // repeatable
	steps, next := 0, 0
	for time.Now().Before(until) {
		for i := range ids {
			ids[i], data[i] = int64(first+keys[next]), text
			next = (next + 1) % len(keys)
		}
		tag, err := pool.Exec(ctx, limitStep, ids, data)
		if err != nil {
			return steps, err
		}
		if tag.RowsAffected() != limitBatch {
			return steps, fmt.Errorf("%d rows of %d were written", tag.RowsAffected(), limitBatch)
		}
		steps += limitBatch
	}
	return steps, nil
}
