package replica

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/wiggle-run/wiggle/pkg/postgres"
)

// refusal is why a server is not read from, in words that name no host, and what state that is.
type refusal struct {
	state  State
	reason string
}

func (r *refusal) Error() string { return r.reason }

func refused(reason string) error { return &refusal{Refused, reason} }

// Reasons that are told of more than one place.
const (
	reasonPromoted = "it is not in recovery: it was promoted, or never was a replica"
	reasonOther    = "its server is not a copy of the primary's: the system identifiers differ"
	reasonUntold   = "the primary has not been heard of yet"
	reasonUnprobed = "it has not been probed yet"
	// reasonUnclaimed is also that of a replica which has not received yet how the primary was claimed.
	reasonUnclaimed = "its database belongs to no shard yet"
)

// readIdentity asks a new connection what it leads to. Missing rows are the claim's.
const readIdentity = `select pg_is_in_recovery(), (pg_control_system()).system_identifier::text, s.shard_id, s.cluster_id
from (values (1)) one left join wiggle_shard s on true`

// check refuses a connection that does not lead to a replica of the shard's primary. It runs once for each connection; what
// a server is changes only when it starts, which breaks its connections, but for a promotion, which [standby] notices.
func (m *member) check(ctx context.Context, conn *pgx.Conn) error {
	want, _, known := m.set.primary.identity()
	if !known {
		return &refusal{Untried, reasonUntold}
	}
	var (
		standby  bool
		systemID string
		shard    *int
		cluster  *string
	)
	err := conn.QueryRow(ctx, readIdentity, pgx.QueryExecModeExec).Scan(&standby, &systemID, &shard, &cluster)
	switch {
	case postgres.IsUndefinedTable(err):
		return &refusal{Failed, reasonUnclaimed}
	case err != nil:
		return err
	case !standby:
		return refused(reasonPromoted)
	case systemID != want:
		return refused(reasonOther)
	case shard == nil || cluster == nil:
		return &refusal{Failed, reasonUnclaimed}
	}
	claim := &postgres.ClaimError{
		WantShard: m.set.shard, WantCluster: m.set.cfg.ClusterID(), HasShard: *shard, HasCluster: *cluster,
	}
	if claim.HasShard != claim.WantShard || claim.WantCluster != "" && claim.HasCluster != claim.WantCluster {
		return refused(claim.Error())
	}
	return nil
}

// standby watches the connections to a replica for its promotion. PostgreSQL reports the parameter in_hot_standby with a
// connection, and with the answer to the first statement after it has changed, before that answer is complete.
type standby struct{ m *member }

var (
	_ pgx.QueryTracer = (*standby)(nil)
	_ pgx.BatchTracer = (*standby)(nil)
)

func (s *standby) look(conn *pgx.Conn) {
	if conn.PgConn().ParameterStatus("in_hot_standby") == "off" {
		s.m.promoted.Store(true)
	}
}

func (s *standby) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (s *standby) TraceQueryEnd(_ context.Context, conn *pgx.Conn, _ pgx.TraceQueryEndData) {
	s.look(conn)
}

func (s *standby) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *standby) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (s *standby) TraceBatchEnd(_ context.Context, conn *pgx.Conn, _ pgx.TraceBatchEndData) {
	s.look(conn)
}

// wrongTimeline refuses a replica that is on another timeline than its primary.
func wrongTimeline(has, primary int32) error {
	return refused(fmt.Sprintf("it is on timeline %d, the primary on %d", has, primary))
}
