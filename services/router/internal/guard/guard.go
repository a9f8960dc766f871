package guard

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/principals"
)

// Recorder takes entries for the audit log. It does not block.
type Recorder interface{ Record(*wigglev1.AuditEntry) }

// Config is what a guard needs.
type Config struct {
	// Off lets everything through (WIGGLE_AUTH=off). The rest of the configuration is not used then, but for TrustedProxies.
	Off bool
	// Rules are those of the procedures; see [Rules]. A call of any other is refused.
	Rules map[string]*Rule
	// Known knows whose credentials are.
	Known Authenticator
	// Resolver tells what ids stand for.
	Resolver Resolver
	// Audit records.
	Audit Recorder
	// TrustedProxies are believed what they say of callers' addresses.
	TrustedProxies []netip.Prefix
	// Recheck is how often the callers of streams are looked up again.
	Recheck time.Duration
	// Logger and Meter tell of it.
	Logger *slog.Logger
	Meter  metric.Meter
}

// Guard is an interceptor for the router's handlers. It is safe for concurrent use.
type Guard struct {
	cfg       Config
	live      *live
	denied    metric.Int64Counter
	service   *identity.Principal
	anonymous *identity.Principal
}

// New makes a guard.
func New(cfg Config) (*Guard, error) {
	denied, err := cfg.Meter.Int64Counter("wiggle.auth.denied", metric.WithUnit("{call}"),
		metric.WithDescription("Calls, and items of batches, that were denied, by action."))
	if err != nil {
		return nil, err
	}
	return &Guard{
		cfg: cfg, live: newLive(cfg.Known, cfg.Recheck), denied: denied,
		service: identity.Service(), anonymous: identity.Anonymous(),
	}, nil
}

// Run ends streams whose callers are none any more, until ctx is done.
func (g *Guard) Run(ctx context.Context) {
	if g.cfg.Off {
		<-ctx.Done()
		return
	}
	g.live.run(ctx)
}

// Changed is told what the cache of principals forgets.
func (g *Guard) Changed(ch principals.Change) { g.live.changed(ch) }

// caller is a call at the guard.
type caller struct {
	rule       *Rule
	principal  *identity.Principal // nil: nobody, where anyone may call
	credential principals.Credential
	limits     *Limits // nil: not limited
	changes    uint64  // seen before the principal was looked up
}

// admit finds out who calls and whether they may call the procedure at all.
func (g *Guard) admit(ctx context.Context, procedure string, header http.Header) (caller, error) {
	c := caller{rule: g.cfg.Rules[procedure]}
	switch {
	case g.cfg.Off:
		c.principal = g.anonymous
		return c, nil
	case c.rule == nil:
		return c, faults.Internal(errors.New("guard: no rule for " + procedure))
	case c.rule.access == anyone:
		return c, nil
	case rpc.CalledByService(ctx):
		c.principal = g.service
		return c, nil
	}
	credential, shown, err := credentialOf(ctx, header)
	if err != nil {
		return c, err
	}
	if !shown {
		return c, noCredential()
	}
	c.changes = g.live.changes.Load()
	c.credential = credential
	if c.principal, err = g.cfg.Known.Lookup(ctx, credential); err != nil {
		return c, err
	}
	return c, c.allowed()
}

// allowed checks what does not depend on the message.
func (c *caller) allowed() error {
	switch c.rule.access {
	case signedIn:
		return nil
	case services:
		return faults.Denied("%s is for the services of the cluster, and the caller is %s", c.rule.Procedure, c.principal)
	default:
	}
	if c.principal.Permissions().AllowsEverywhere(c.rule.Action) {
		return nil
	}
	scopes := c.principal.Permissions().Scopes(c.rule.Action)
	if len(scopes) == 0 || !c.rule.scoped {
		return faults.PermissionDenied(c.rule.Action, c.principal.String())
	}
	c.limits = &Limits{principal: c.principal, action: c.rule.Action, scopes: scopes}
	return nil
}

// enter is the context of a call that was admitted.
func (g *Guard) enter(ctx context.Context, c *caller, peer connect.Peer, header http.Header) context.Context {
	if g.cfg.Off && (c.rule == nil || !c.rule.toAuth) {
		return ctx // nobody asks who calls
	}
	if c.principal != nil {
		ctx = identity.With(ctx, c.principal)
	}
	if c.rule.toAuth {
		ctx = context.WithValue(ctx, originKey{}, origin{
			address: callerAddress(peer.Addr, header, g.cfg.TrustedProxies), agent: header.Get("User-Agent"),
		})
	}
	if c.limits != nil {
		c.limits.resolver = g.cfg.Resolver
		c.limits.refused = func(ctx context.Context, target string, errs ...error) {
			if len(errs) == 1 {
				g.refused(ctx, c, peer, header, target, errs[0])
			} else {
				g.refusedItems(ctx, c, peer, header, target, errs)
			}
		}
		ctx = context.WithValue(ctx, limitsKey{}, c.limits)
	}
	return ctx
}

// WrapUnary implements [connect.Interceptor].
func (g *Guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		c, err := g.admit(ctx, req.Spec().Procedure, req.Header())
		if err != nil {
			g.refused(ctx, &c, req.Peer(), req.Header(), c.target(req.Any()), err)
			return nil, err
		}
		ctx = g.enter(ctx, &c, req.Peer(), req.Header())
		if c.limits != nil {
			if ctx, err = g.judge(ctx, &c, req); err != nil {
				return nil, err
			}
		}
		if c.rule != nil && c.rule.waits && c.credential.Text != "" {
			var leave func()
			ctx, leave = g.live.track(ctx, c.rule, c.credential, c.principal, c.changes)
			defer leave()
		}
		res, err := next(ctx, req)
		if c.rule != nil && c.rule.audited && !g.cfg.Off {
			g.done(ctx, &c, req.Peer(), req.Header(), c.target(req.Any()), err)
		}
		return res, causeOf(ctx, err)
	}
}

// judge holds a call to its caller's limits.
func (g *Guard) judge(ctx context.Context, c *caller, req connect.AnyRequest) (context.Context, error) {
	message, ok := req.Any().(proto.Message)
	if !ok {
		return nil, faults.Internal(errors.New("guard: the message of " + c.rule.Procedure + " is none of protobuf"))
	}
	items, err := c.limits.judge(ctx, c.rule.about(message))
	if err != nil {
		g.refused(ctx, c, req.Peer(), req.Header(), c.target(message), err)
		return nil, err
	}
	if items == nil {
		return ctx, nil
	}
	g.refusedItems(ctx, c, req.Peer(), req.Header(), c.target(message), items)
	return context.WithValue(ctx, verdictsKey{}, items), nil
}

// WrapStreamingHandler implements [connect.Interceptor].
func (g *Guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		c, err := g.admit(ctx, conn.Spec().Procedure, conn.RequestHeader())
		if err != nil {
			g.refused(ctx, &c, conn.Peer(), conn.RequestHeader(), "", err)
			return err
		}
		ctx = g.enter(ctx, &c, conn.Peer(), conn.RequestHeader())
		if c.rule != nil && c.rule.waits && c.credential.Text != "" {
			var leave func()
			ctx, leave = g.live.track(ctx, c.rule, c.credential, c.principal, c.changes)
			defer leave()
		}
		err = next(ctx, conn)
		if c.rule != nil && c.rule.audited && !g.cfg.Off {
			g.done(ctx, &c, conn.Peer(), conn.RequestHeader(), "", err)
		}
		return causeOf(ctx, err)
	}
}

// WrapStreamingClient implements [connect.Interceptor].
func (g *Guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// refused counts and records a call that was denied. One that could not be judged was not.
func (g *Guard) refused(ctx context.Context, c *caller, peer connect.Peer, header http.Header, target string, err error) {
	if isDenied(err) {
		g.deny(ctx, c, 1, peer, header, target, err.Error())
	}
}

// refusedItems counts items that were denied, and records them as one.
func (g *Guard) refusedItems(ctx context.Context, c *caller, peer connect.Peer, header http.Header, target string, items []error) {
	var first error
	denied := 0
	for _, err := range items {
		if !isDenied(err) {
			continue
		}
		if denied++; first == nil {
			first = err
		}
	}
	if denied > 0 {
		g.deny(ctx, c, denied, peer, header, target, itemsDetail(denied, len(items), first))
	}
}

func (g *Guard) deny(ctx context.Context, c *caller, n int, peer connect.Peer, header http.Header, target, detail string) {
	g.denied.Add(ctx, int64(n), metric.WithAttributes(attribute.String("action", c.action())))
	entry := g.entry(ctx, c, peer, header, target)
	entry.Detail = detail
	g.cfg.Audit.Record(entry)
}

// isDenied tells a denial from what could not be judged.
func isDenied(err error) bool {
	code := faults.CodeOf(err)
	return code == faults.CodeUnauthenticated || code == faults.CodePermissionDenied
}

// done records what an operator did, and what came of it.
func (g *Guard) done(ctx context.Context, c *caller, peer connect.Peer, header http.Header, target string, err error) {
	entry := g.entry(ctx, c, peer, header, target)
	entry.Allowed, entry.Detail = true, faults.CodeOf(err).String()
	g.cfg.Audit.Record(entry)
}

func (g *Guard) entry(ctx context.Context, c *caller, peer connect.Peer, header http.Header, target string) *wigglev1.AuditEntry {
	entry := &wigglev1.AuditEntry{
		Action: c.action(), Target: target, Address: callerAddress(peer.Addr, header, g.cfg.TrustedProxies),
	}
	if c.principal != nil {
		entry.Principal = c.principal.String()
	}
	if span := trace.SpanContextFromContext(ctx); span.HasTraceID() {
		entry.TraceId = span.TraceID().String()
	}
	return entry
}

// action names what was tried: the procedure, where it needs no permission for an action.
func (c *caller) action() string {
	switch {
	case c.rule == nil:
		return "unknown"
	case c.rule.Action == "":
		return c.rule.Procedure
	}
	return c.rule.Action
}
