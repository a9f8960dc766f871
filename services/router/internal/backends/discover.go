package backends

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/services/router/internal/pause"
)

// Discovery turns the configured URLs into addresses. A URL names one process; one that begins with dns+ (such as
// dns+http://instances:8421) names one for each address that its host has, which are looked up again and again, so that
// processes can be added and taken away while routers run.
type Discovery struct {
	// URLs are the configured ones.
	URLs []string
	// Lookup finds the addresses of a host; nil means the system's resolver.
	Lookup func(ctx context.Context, host string) ([]string, error)
	// Interval is how often hosts are looked up.
	Interval time.Duration
	// Connect makes the client for a base URL.
	Connect func(baseURL string) Client
	Logger  *slog.Logger
}

// dnsPrefix marks URLs whose host stands for all of its addresses.
const dnsPrefix = "dns+"

// Run sends the list of endpoints, at first and whenever it changes, until ctx is done.
func (d Discovery) Run(ctx context.Context, updates chan<- []Endpoint) {
	known := make(map[string][]string) // what a URL was found to stand for
	var sent []string
	for {
		names, dynamic := d.names(ctx, known)
		if !slices.Equal(names, sent) {
			endpoints := make([]Endpoint, len(names))
			for i, name := range names {
				endpoints[i] = Endpoint{Name: name, Client: d.Connect(name)}
			}
			select {
			case updates <- endpoints:
				sent = names
			case <-ctx.Done():
				return
			}
		}
		if !dynamic {
			<-ctx.Done()
			return
		}
		if !pause.For(ctx, pause.Jitter(d.Interval), nil) {
			return
		}
	}
}

// names lists the base URLs of all processes. A host that cannot be looked up stands for what it stood for before.
func (d Discovery) names(ctx context.Context, known map[string][]string) (names []string, dynamic bool) {
	for _, configured := range d.URLs {
		base, isDNS := strings.CutPrefix(configured, dnsPrefix)
		if !isDNS {
			names = append(names, strings.TrimRight(configured, "/"))
			continue
		}
		dynamic = true
		found, err := d.resolve(ctx, base)
		if err == nil {
			known[configured] = found
		} else if ctx.Err() == nil {
			d.Logger.WarnContext(ctx, "instances processes cannot be looked up",
				slog.String("url", configured), slog.Any("error", err))
		}
		names = append(names, known[configured]...)
	}
	slices.Sort(names)
	return slices.Compact(names), dynamic
}

func (d Discovery) resolve(ctx context.Context, base string) ([]string, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	lookup := d.Lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupHost
	}
	addresses, err := lookup(ctx, u.Hostname())
	if err != nil {
		return nil, err
	}
	names := make([]string, len(addresses))
	for i, address := range addresses {
		each := *u
		each.Host = address
		if strings.Contains(address, ":") {
			each.Host = "[" + address + "]"
		}
		if port := u.Port(); port != "" {
			each.Host = net.JoinHostPort(address, port)
		}
		names[i] = strings.TrimRight(each.String(), "/")
	}
	return names, nil
}
