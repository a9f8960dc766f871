package router

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1/wiggleinternalv1connect"
	"github.com/wiggle-run/wiggle/services/router/internal/api"
	"github.com/wiggle-run/wiggle/services/router/internal/audit"
	"github.com/wiggle-run/wiggle/services/router/internal/guard"
	"github.com/wiggle-run/wiggle/services/router/internal/peers"
	"github.com/wiggle-run/wiggle/services/router/internal/principals"
)

// declareAuth declares what is about who may call.
func (c *Config) declareAuth(r *settings.Registry) {
	var auth string
	process.DeclareAuth(r, &auth)
	r.Check(func() error {
		c.AuthOff = auth == process.AuthOff
		return nil
	})
	r.Strings(&c.AuthURLs, settingAuthURLs, nil, "URLs of the auth processes. Required unless WIGGLE_AUTH is off.",
		settings.Example("http://10.0.0.9:8460,http://10.0.0.10:8460"))
	r.Duration(&c.AuthCache, "WIGGLE_AUTH_CACHE_MILLIS", defaultAuthCache,
		"How long a caller counts as known without asking the auth service again. Changes are followed within a second all the same.",
		settings.Within(time.Second, time.Hour))
	r.Duration(&c.AuthGrace, "WIGGLE_AUTH_GRACE", defaultAuthGrace,
		"How long a caller that is known goes on while no auth process answers.", settings.Within(0, 7*24*time.Hour))
	r.Strings(&c.TrustedProxies, settingProxies, nil,
		"Networks of proxies in front of the router, whose header X-Forwarded-For is believed for the audit log and limits on sign-in.",
		settings.Example("10.0.0.0/8,fd00::/8"))
	c.NATS.Declare(r)
}

func (c *Config) checkAuth() []process.Problem {
	var found []process.Problem
	if len(c.AuthURLs) == 0 && !c.AuthOff {
		found = append(found, process.Problem{
			Where: settingAuthURLs, Message: "is not set: a router asks the auth processes who calls; give their URLs, or let" +
				" everybody do everything with " + process.SettingAuth + "=" + process.AuthOff,
		})
	}
	found = append(found, process.CheckURLs(settingAuthURLs, c.AuthURLs...)...)
	for _, configured := range c.TrustedProxies {
		if _, err := parseNetwork(configured); err != nil {
			found = append(found, process.Problem{
				Where: settingProxies, Message: fmt.Sprintf("names %q, which is no network such as 10.0.0.0/8 and no address", configured),
			})
		}
	}
	return found
}

// parseNetwork reads a network, or an address as the network of it alone.
func parseNetwork(text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.Prefix(address.BitLen())
	}
	network, err := netip.ParsePrefix(text)
	return network.Masked(), err
}

// security is the part of a router that knows callers.
type security struct {
	guard *guard.Guard
	peers *peers.Peers[api.AuthClient]
	known *principals.Cache // nil: WIGGLE_AUTH is off
	audit *audit.Log        // nil: WIGGLE_AUTH is off
}

// mounted are the services whose calls a router answers.
func mounted() []string {
	return []string{
		wigglev1connect.InstanceServiceName, wigglev1connect.WorkerServiceName, wigglev1connect.WorkflowServiceName,
		wigglev1connect.EventServiceName, wigglev1connect.ScheduleServiceName, wigglev1connect.ClusterServiceName,
		wigglev1connect.SearchServiceName, wigglev1connect.AuthServiceName, wigglev1connect.AccountServiceName,
		wigglev1connect.RoleServiceName, wigglev1connect.KeyServiceName, wigglev1connect.AuditServiceName,
		wiggleinternalv1connect.ScanServiceName,
	}
}

// newSecurity wires the guard.
func (r *Router) newSecurity(resolver guard.Resolver, options []connect.ClientOption, meter metric.Meter) (*security, error) {
	rules, err := guard.Rules(mounted()...)
	if err != nil {
		return nil, err
	}
	s := &security{peers: newPeers(r.http, "auth", settingAuthURLs, r.cfg.AuthURLs, options, api.NewAuthClient)}
	cfg := guard.Config{
		Off: r.cfg.AuthOff, Rules: rules, Resolver: resolver, Recheck: r.cfg.AuthCache, Logger: r.logger, Meter: meter,
	}
	for _, configured := range r.cfg.TrustedProxies {
		network, err := parseNetwork(configured)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", settingProxies, err)
		}
		cfg.TrustedProxies = append(cfg.TrustedProxies, network)
	}
	if !cfg.Off {
		source := api.Principals{Peers: s.peers}
		if s.audit, err = audit.New(source, r.logger, meter); err != nil {
			return nil, fmt.Errorf("make metrics: %w", err)
		}
		s.known, err = principals.New(principals.Config{
			TTL: r.cfg.AuthCache, Grace: r.cfg.AuthGrace, Changed: func(ch principals.Change) { s.guard.Changed(ch) },
		}, source, r.logger, meter)
		if err != nil {
			return nil, fmt.Errorf("make metrics: %w", err)
		}
		cfg.Known, cfg.Audit = s.known, s.audit
	}
	if s.guard, err = guard.New(cfg); err != nil {
		return nil, fmt.Errorf("make metrics: %w", err)
	}
	return s, nil
}

// components are what runs of it, for a router's list: calls are over before it stops.
func (s *security) components(r *Router) []lifecycle.Component {
	if s.known == nil {
		return []lifecycle.Component{{Name: "guard", Start: func(ctx context.Context) error {
			r.logger.WarnContext(ctx, "callers are not checked, and everybody may do everything, as WIGGLE_AUTH=off says")
			return nil
		}}}
	}
	components := []lifecycle.Component{
		{Name: "audit", Run: s.audit.Run},
		{Name: "principals", Run: blocks(s.known.Run)},
		{Name: "guard", Run: blocks(s.guard.Run)},
	}
	if len(r.cfg.NATS.URLs) > 0 {
		listen := func(ctx context.Context) error { return s.listen(ctx, r) }
		components = append(components, lifecycle.Component{Name: "changes", Run: listen})
	}
	return components
}

// listen hears of changes by NATS until ctx is done. Without NATS the changes are heard of all the same, a little later.
func (s *security) listen(ctx context.Context, r *Router) error {
	cfg := r.cfg.NATS
	cfg.Name, cfg.Logger = "wiggle-router", r.logger
	b, err := bus.Open(cfg)
	if err != nil {
		return err
	}
	defer b.Close()
	stop, err := b.Listen(subjectChanges, func(data []byte) {
		changes := &wiggleinternalv1.ListChangesResponse{}
		if err := proto.Unmarshal(data, changes); err != nil {
			r.logger.WarnContext(ctx, "what was told of changed credentials cannot be read", slog.Any("error", err))
			return
		}
		s.known.Apply(changes)
	})
	if err != nil {
		return err
	}
	defer stop()
	<-ctx.Done()
	return nil
}

// subjectChanges is where the auth service tells what changed, as an encoded ListChangesResponse.
const subjectChanges = "wiggle.auth.changes"

// mountAuth puts the services of accounts on the server.
func (r *Router) mountAuth() {
	auth := api.NewAuth(r.security.peers, r.cfg.CallTimeout, !r.cfg.AuthOff)
	options := r.server.Options()
	for _, mount := range []func() (string, http.Handler){
		func() (string, http.Handler) { return wigglev1connect.NewAuthServiceHandler(auth, options...) },
		func() (string, http.Handler) { return wigglev1connect.NewAccountServiceHandler(auth, options...) },
		func() (string, http.Handler) { return wigglev1connect.NewRoleServiceHandler(auth, options...) },
		func() (string, http.Handler) { return wigglev1connect.NewKeyServiceHandler(auth, options...) },
		func() (string, http.Handler) { return wigglev1connect.NewAuditServiceHandler(auth, options...) },
	} {
		r.server.Mount(mount())
	}
}

// interceptors are the guard and what the configuration adds.
func (r *Router) interceptors() []connect.Interceptor {
	return slices.Concat([]connect.Interceptor{r.security.guard}, r.cfg.Interceptors)
}
