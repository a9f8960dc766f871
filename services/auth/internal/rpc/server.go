package rpc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/trace"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/authstore"
	"github.com/wiggle-run/wiggle/services/auth/internal/password"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

const (
	// retryAfter is what a caller is asked to wait for an auth shard that does not answer.
	retryAfter = 500 * time.Millisecond
	// retryBusy is what a caller is asked to wait where too many passwords are being checked.
	retryBusy = 2 * time.Second
	// Pages of lists.
	defaultPage = 100
	maxPage     = 1000
)

// Config says what the services are part of.
type Config struct {
	Store  *authstore.Store
	Hasher *password.Hasher
	// Shard is the number of the auth shard.
	Shard int
	// Ready tells whether the auth shard can be used.
	Ready func() bool
	// Announce is told what caches have to forget, after it is committed. It must not block.
	Announce func(authstore.Changes)
	Metrics  *Metrics
	Logger   *slog.Logger
}

// Server implements the services.
type Server struct {
	cfg    Config
	store  *authstore.Store
	hasher *password.Hasher
}

// New makes the services.
func New(cfg Config) *Server { return &Server{cfg: cfg, store: cfg.Store, hasher: cfg.Hasher} }

// caller is who makes a call, from where.
type caller struct {
	// principal is nil where nobody is signed in.
	principal      *identity.Principal
	address, agent string
	trace          string
}

func callerOf(ctx context.Context) caller {
	c := caller{principal: identity.FromContext(ctx)}
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		c.address, c.agent = info.RequestHeader().Get(identity.AddressHeader), info.RequestHeader().Get(identity.AgentHeader)
	}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		c.trace = span.TraceID().String()
	}
	return c
}

// name is the caller in the audit log.
func (c caller) name() string {
	if c.principal == nil {
		return ""
	}
	return c.principal.String()
}

// user is the name of the account and the id of the session of a call that is about the caller's account.
func (c caller) user() (account, session string, err error) {
	if c.principal.Message().GetKind() != internalv1.PrincipalKind_PRINCIPAL_KIND_USER {
		return "", "", faults.FailedPrecondition("%s is no account: only whoever signs in with a password has one", c.name())
	}
	return c.principal.Message().GetName(), c.principal.Message().GetCredentialId(), nil
}

func (c caller) entry(action, target string, allowed bool, detail string) authstore.Entry {
	return authstore.Entry{
		Principal: c.name(), Address: c.address, Action: action, Target: target, Allowed: allowed, Detail: detail, TraceID: c.trace,
	}
}

// change is a change under way, with what the caller may do as the database has it.
type change struct {
	*authstore.Tx
	caller caller
	have   permission.Set
	// owner is the account that the caller is or goes with; 0 for none.
	owner int64
	// detail is what the audit log says came of it.
	detail string
}

// beyond is an error if the caller does not have all of these permissions, and so may not give them, or act upon who has them.
func (c *change) beyond(permissions []string) error {
	missing, ok, err := policy.Beyond(c.have, permissions)
	switch {
	case err != nil:
		return faults.InvalidArgument("%v", err)
	case !ok:
		return faults.PermissionDenied(missing, c.caller.name())
	}
	return nil
}

// recognise reads what the caller may do now. Callers that have no rows, the cluster's services and anybody where nothing
// is enforced, may do what the router says.
func (c *change) recognise(ctx context.Context, action string) error {
	message := c.caller.principal.Message()
	kind := message.GetKind()
	if kind != internalv1.PrincipalKind_PRINCIPAL_KIND_USER && kind != internalv1.PrincipalKind_PRINCIPAL_KIND_KEY {
		c.have = c.caller.principal.Permissions()
		return nil
	}
	p, err := c.Caller(ctx, kind == internalv1.PrincipalKind_PRINCIPAL_KIND_KEY, message.GetCredentialId())
	if errors.Is(err, authstore.ErrNotFound) {
		return unauthenticated()
	}
	if err != nil {
		return err
	}
	if c.have, err = permission.NewSet(p.Permissions); err != nil {
		return err
	}
	c.owner = p.Owner
	if action != "" && !c.have.AllowsEverywhere(action) {
		return faults.PermissionDenied(action, c.caller.name())
	}
	return nil
}

func unauthenticated() error {
	return faults.Unauthenticated("the session or key is not valid, or not any more: sign in with wiggle login, or set WIGGLE_API_KEY")
}

// act is what a call does and on what, as the audit log says.
type act struct {
	// permission is what the caller needs; empty for what is about the caller itself.
	permission string
	// action and target are for the audit log.
	action, target string
}

// change makes a change on behalf of the caller, with its audit entry in the same transaction. What was denied is recorded too.
// do may run again.
func (s *Server) change(ctx context.Context, a act, do func(ctx context.Context, c *change) error) error {
	if err := s.opened(); err != nil {
		return err
	}
	who := callerOf(ctx)
	if who.principal == nil {
		return unauthenticated()
	}
	changes, err := s.store.Change(ctx, a.action, func(ctx context.Context, tx *authstore.Tx) error {
		c := &change{Tx: tx, caller: who}
		if err := c.recognise(ctx, a.permission); err != nil {
			return err
		}
		if err := do(ctx, c); err != nil {
			return err
		}
		tx.Audit(who.entry(a.action, a.target, true, c.detail))
		return nil
	})
	if err != nil {
		return s.refused(ctx, who, a, err)
	}
	s.announce(changes)
	return nil
}

// refused records a change that was denied. Where that cannot be written the call fails anyway, and the log has it.
func (s *Server) refused(ctx context.Context, who caller, a act, err error) error {
	fault := s.fault(err)
	switch faults.CodeOf(fault) {
	case faults.CodePermissionDenied, faults.CodeUnauthenticated, faults.CodeFailedPrecondition:
		s.record(ctx, who.entry(a.action, a.target, false, fault.Error()))
	default:
	}
	return fault
}

func (s *Server) record(ctx context.Context, entries ...authstore.Entry) {
	if err := s.store.Record(ctx, entries...); err != nil {
		s.cfg.Logger.ErrorContext(ctx, "the audit log could not be written", slog.Any("error", err))
	}
}

func (s *Server) announce(changes authstore.Changes) {
	if changes.Revision > 0 {
		s.cfg.Announce(changes)
	}
}

// opened is an error until the auth shard can be used.
func (s *Server) opened() error {
	if s.cfg.Ready() {
		return nil
	}
	return faults.ShardUnavailable(s.cfg.Shard, retryAfter)
}

// keepsAdmin is an error if the change has left no administrator (AUT-7).
func (c *change) keepsAdmin(ctx context.Context) error {
	has, err := c.HasAdmin(ctx)
	if err == nil && !has {
		err = faults.FailedPrecondition("this would leave no administrator: an enabled account whose roles allow everything; " +
			"make another one first")
	}
	return err
}

// fault says in a client's terms what went wrong on the auth shard.
func (s *Server) fault(err error) error {
	if own, ok := errors.AsType[*faults.Error](err); ok {
		return own
	}
	if limit, ok := errors.AsType[*authstore.LimitError](err); ok {
		return faults.Overloaded(limit.RetryAfter, "too many tries for this account or from this address; try again in %s",
			limit.RetryAfter.Round(time.Second))
	}
	switch {
	case errors.Is(err, password.ErrBusy):
		return faults.Overloaded(retryBusy, "too many passwords are being checked; try again in %s", retryBusy)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return faults.ShardUnavailable(s.cfg.Shard, retryAfter).WithCause(err)
	}
	switch postgres.Classify(err) {
	case postgres.Unknown:
		return faults.OutcomeUnknown(s.cfg.Shard).WithCause(err)
	case postgres.Unavailable, postgres.ReadOnly, postgres.NotApplied, postgres.Interrupted:
		return faults.ShardUnavailable(s.cfg.Shard, retryAfter).WithCause(err)
	default:
		return faults.Internal(err)
	}
}
