package pgmeter

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestLimit(t *testing.T) { // PRF-6
	t.Parallel()
	pool := pgtest.NewPool(t)
	cfg := LimitConfig{Rows: 2000, Rounds: 3, Duration: 50 * time.Millisecond, Warmup: 10 * time.Millisecond}
	result, err := runLimit(t.Context(), pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if result.Median <= 0 || len(result.Rounds) != 3 || !slices.Contains(result.Rounds, result.Median) {
		t.Errorf("%+v", result)
	}
	// Each step has updated a row of A and inserted its row of B.
	var updates, inserts, odd int64
	err = pool.QueryRow(t.Context(), `
		select (select sum(step)::bigint from a), (select count(*) from b),
		       (select count(*) from a where length(data) <> 200 or step <> (select count(*) from b where b.id = a.id))`).
		Scan(&updates, &inserts, &odd)
	if err != nil || updates == 0 || updates != inserts || odd != 0 {
		t.Errorf("%d updates, %d inserts, %d rows are odd: %v", updates, inserts, odd, err)
	}
}

// TestLimitPlan: a plan that reads the whole table would make the limit too low, and every ratio too good.
func TestLimitPlan(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewPool(t)
	cfg := LimitConfig{Rows: 10_000, Rounds: 1, Duration: time.Millisecond, Warmup: time.Millisecond}
	if _, err := runLimit(t.Context(), pool, cfg); err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{"set plan_cache_mode = force_generic_plan", "prepare s (bigint[], text[]) as " + limitStep} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := conn.Query(t.Context(), "explain execute s (array[1]::bigint[], array['x'])")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		plan.WriteString(line + "\n")
	}
	if !strings.Contains(plan.String(), "Index Scan using a_pkey") || strings.Contains(plan.String(), "Seq Scan") {
		t.Error(plan.String())
	}
}
