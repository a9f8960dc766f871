package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Defaults of [MemberConfig]. Every limit is always set; a zero in the configuration means its default.
const (
	DefaultMaxConns         = 16
	DefaultConnectTimeout   = 2 * time.Second // per host of the connection string; one lost SYN is repeated after 1 s
	DefaultPingTimeout      = time.Second
	DefaultAcquireTimeout   = 5 * time.Second
	DefaultStatementTimeout = 15 * time.Second
	DefaultLockTimeout      = 5 * time.Second
	DefaultIdleInTxTimeout  = 10 * time.Second
	DefaultCommitTimeout    = 10 * time.Second
	DefaultApplicationName  = "wiggle"

	maxConnLifetime       = time.Hour
	maxConnLifetimeJitter = 10 * time.Minute // so that connections of many processes are not renewed at once
)

// MemberConfig says how to reach one member of a shard: its primary or one replica.
type MemberConfig struct {
	// Name stands for the member in errors, logs and metrics, such as "s3/primary". It should not hold a host name.
	Name string
	// URL is a connection string (postgres://...), which may name several hosts and target_session_attrs. Parameters
	// in it win over the defaults below, and the other fields of this struct win over it.
	URL string
	// User and Password replace those of URL when not empty.
	User, Password string

	// MaxConns is the size of the pool. Default 16.
	MaxConns int
	// MinIdleConns is how many connections are kept ready. Default 0: connect lazily, keep what was opened.
	MinIdleConns int
	// ReadOnly makes every session read only (REP-4) and lets the pool be satisfied with a standby.
	ReadOnly bool

	// ConnectTimeout bounds connecting to one host. Default 2 s.
	ConnectTimeout time.Duration
	// PingTimeout bounds the check of a connection that was idle. Default 1 s.
	PingTimeout time.Duration
	// AcquireTimeout bounds waiting for a free connection. Default 5 s.
	AcquireTimeout time.Duration
	// StatementTimeout is PostgreSQL's statement_timeout. Default 15 s.
	StatementTimeout time.Duration
	// LockTimeout is PostgreSQL's lock_timeout. Default 5 s.
	LockTimeout time.Duration
	// IdleInTxTimeout is PostgreSQL's idle_in_transaction_session_timeout. Default 10 s.
	IdleInTxTimeout time.Duration
	// CommitTimeout bounds waiting for the answer to COMMIT, also where it waits for standbys: statement_timeout does
	// not apply to that wait. When it passes, the outcome is unknown. Default 10 s.
	CommitTimeout time.Duration

	// TransactionPooler says that a pooler in transaction mode (PgBouncer, Odyssey, ...) sits in front. Then no session
	// state is used: no prepared statements that outlive a transaction, and no settings at connect, which such poolers
	// refuse. [Pool.InTx] sends the time limits along with BEGIN instead; statements outside a transaction are limited
	// only by what the role or database has configured (ALTER ROLE ... SET statement_timeout), and PlanCacheMode and
	// Params have no effect. LISTEN, session advisory locks and temporary tables do not work through such a pooler at all.
	TransactionPooler bool
	// ExecMode is how statements are sent. Default: cached prepared statements, or with TransactionPooler cached
	// descriptions and unnamed statements.
	ExecMode pgx.QueryExecMode
	// PlanCacheMode is PostgreSQL's plan_cache_mode: "", "auto", "force_generic_plan" or "force_custom_plan".
	PlanCacheMode string
	// Params are further settings sent at connect, such as "options" or "jit".
	Params map[string]string
	// ApplicationName is what pg_stat_activity shows. Default "wiggle".
	ApplicationName string

	// Types, if set, registers further types with each new connection.
	Types func(*pgtype.Map)
	// OnConnect, if set, looks at each new connection of the pool before it is used. With an error the connection is closed,
	// and the call that wanted it fails with an [Error] of class [Permanent] that wraps this error, unless it is the
	// database's. It is not asked by the probes of a pool that is down.
	OnConnect func(ctx context.Context, conn *pgx.Conn) error
	// Tracer, if set, sees every query; it may implement pgx's and pgxpool's other tracer interfaces too.
	Tracer pgx.QueryTracer
	// Logger receives changes of state. Default: none.
	Logger *slog.Logger
	// OnState, if set, is called after each change of state, one at a time. It must neither block nor call the pool.
	OnState func(Health)
}

// String names the member; connection string and password stay out of logs however the configuration gets there.
func (c MemberConfig) String() string { return "postgres member " + c.Name }

// GoString is String, for %#v.
func (c MemberConfig) GoString() string { return c.String() }

// LogValue is String, for slog.
func (c MemberConfig) LogValue() slog.Value { return slog.StringValue(c.String()) }

func (c MemberConfig) withDefaults() MemberConfig {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.ConnectTimeout, DefaultConnectTimeout},
		{&c.PingTimeout, DefaultPingTimeout},
		{&c.AcquireTimeout, DefaultAcquireTimeout},
		{&c.CommitTimeout, DefaultCommitTimeout},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.MaxConns == 0 {
		c.MaxConns = DefaultMaxConns
	}
	if c.Name == "" {
		c.Name = "database"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c MemberConfig) validate() error {
	var errs []error
	for _, limit := range []struct {
		name  string
		value time.Duration
	}{
		{"connect timeout", c.ConnectTimeout},
		{"ping timeout", c.PingTimeout},
		{"acquire timeout", c.AcquireTimeout},
		{"statement timeout", c.StatementTimeout},
		{"lock timeout", c.LockTimeout},
		{"idle in transaction timeout", c.IdleInTxTimeout},
		{"commit timeout", c.CommitTimeout},
	} {
		if limit.value < 0 {
			errs = append(errs, fmt.Errorf("%s is negative; limits cannot be switched off", limit.name))
		}
	}
	if c.MaxConns < 1 || c.MinIdleConns < 0 || c.MinIdleConns > c.MaxConns {
		errs = append(errs, fmt.Errorf("pool of %d connections with %d idle is impossible", c.MaxConns, c.MinIdleConns))
	}
	switch c.PlanCacheMode {
	case "", "auto", "force_generic_plan", "force_custom_plan":
	default:
		errs = append(errs, fmt.Errorf("unknown plan cache mode %q", c.PlanCacheMode))
	}
	return errors.Join(errs...)
}

// poolConfig translates c, which has its defaults, for pgxpool.
func (c MemberConfig) poolConfig() (*pgxpool.Config, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	pc, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, parseError(err)
	}
	cc := pc.ConnConfig
	if c.User != "" {
		cc.User = c.User
	}
	if c.Password != "" {
		cc.Password = c.Password
	}
	cc.ConnectTimeout = c.ConnectTimeout
	cc.DialFunc = newDialer().DialContext
	cc.RuntimeParams = c.runtimeParams(cc.RuntimeParams)
	if c.TransactionPooler {
		cc.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		cc.StatementCacheCapacity = 0
	}
	if c.ExecMode != 0 {
		cc.DefaultQueryExecMode = c.ExecMode
	}
	pc.AfterConnect = c.afterConnect
	pc.MaxConns = int32(min(c.MaxConns, 1<<20)) //nolint:gosec // bounded
	pc.MinIdleConns = int32(min(c.MinIdleConns, 1<<20))
	pc.PingTimeout = c.PingTimeout
	pc.MaxConnLifetime = maxConnLifetime
	pc.MaxConnLifetimeJitter = maxConnLifetimeJitter
	return pc, nil
}

// afterConnect makes a new connection ready, or refuses it.
func (c MemberConfig) afterConnect(ctx context.Context, conn *pgx.Conn) error {
	if c.Types != nil {
		c.Types(conn.TypeMap())
	}
	if c.OnConnect != nil {
		return c.OnConnect(ctx, conn)
	}
	return nil
}

// runtimeParams are the settings sent at connect: ours over those of the URL over the defaults.
func (c MemberConfig) runtimeParams(fromURL map[string]string) map[string]string {
	name := c.ApplicationName
	if name == "" {
		name = DefaultApplicationName
	}
	params := map[string]string{"application_name": name}
	if c.TransactionPooler {
		if v, ok := fromURL["application_name"]; ok && c.ApplicationName == "" {
			params["application_name"] = v
		}
		return params
	}
	maps.Copy(params, limitParams(DefaultStatementTimeout, DefaultLockTimeout, DefaultIdleInTxTimeout))
	maps.Copy(params, fromURL)
	if c.ApplicationName != "" {
		params["application_name"] = c.ApplicationName
	}
	maps.Copy(params, limitParams(c.StatementTimeout, c.LockTimeout, c.IdleInTxTimeout))
	if c.PlanCacheMode != "" {
		params["plan_cache_mode"] = c.PlanCacheMode
	}
	if c.ReadOnly {
		params["default_transaction_read_only"] = "on"
	}
	maps.Copy(params, c.Params)
	return params
}

// limitParams are the server's time limits in the form that SET and the startup packet take; zeros are left out.
func limitParams(statement, lock, idleInTx time.Duration) map[string]string {
	params := map[string]string{}
	for name, d := range map[string]time.Duration{
		"statement_timeout": statement, "lock_timeout": lock, "idle_in_transaction_session_timeout": idleInTx,
	} {
		if d > 0 {
			params[name] = strconv.FormatInt(max(1, d.Milliseconds()), 10)
		}
	}
	return params
}

// parseError replaces pgx's error, which quotes the connection string and masks its password only by guessing.
func parseError(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("connection string names a file that cannot be read: %s", pathErr.Path)
	}
	for _, part := range []string{"sslmode", "target_session_attrs", "connect_timeout", "port"} {
		if strings.Contains(err.Error(), "invalid "+part) || strings.Contains(err.Error(), "unknown "+part) {
			return fmt.Errorf("connection string has a bad %s", part)
		}
	}
	return errors.New("connection string cannot be parsed; want postgres://host[:port][,host...]/database[?parameters]")
}

func withTracer(ours pgx.QueryTracer, theirs pgx.QueryTracer) pgx.QueryTracer {
	if theirs == nil {
		return ours
	}
	return multitracer.New(ours, theirs)
}
