package pgmeter

import (
	"context"
	"fmt"
	"time"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

const (
	// fillPage is how many entries one statement writes.
	fillPage = 100_000
	// fillAge is how far back the first half of the entries lies: beyond retention.
	fillAge = 8 * 24 * time.Hour
)

// fillEvents writes entries as the engine would have, of instances that are long gone.
const fillEvents = `insert into events (recorded_at, instance_id, revision, version, namespace, workflow, type, node, key)
select clock_timestamp() - $2::interval, gen_random_uuid(), 1 + i % 2, 1, 'default', 'bench-logged',
	case i % 2 when 0 then 'wf.started' else 'wf.completed' end, '', ''
from generate_series(1, $1::integer) i`

// FillEvents puts so many entries into each shard's event log, the first half older than events are kept.
func (all Databases) FillEvents(ctx context.Context, entries int) error {
	for _, d := range all {
		for done := 0; done < entries; done += fillPage {
			age := time.Duration(0)
			if done < entries/2 {
				age = fillAge
			}
			if _, err := d.pool.Exec(ctx, fillEvents, min(fillPage, entries-done), age); err != nil {
				return fmt.Errorf("fill the event log of %s: %w", d.name, err)
			}
		}
		if _, err := d.pool.Exec(ctx, "vacuum analyze events"); err != nil {
			return fmt.Errorf("vacuum the event log of %s: %s", d.name, postgres.Detail(err))
		}
	}
	return nil
}
