package wiggle

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"connectrpc.com/connect"
)

// servers are the routers of a cluster. Calls go to one of them for as long as it answers, and then to the next: which
// one answers does not matter, for nothing is kept in it.
type servers struct {
	urls    []*url.URL
	current atomic.Uint32 // the index of the one that calls go to, not yet wrapped round
}

// parseServers checks the URLs; the client begins with any of them, so that many clients spread.
func parseServers(texts []string) (*servers, error) {
	s := &servers{}
	for _, text := range texts {
		u, err := url.Parse(text)
		if strings.Contains(text, "@") && (err != nil || u.User != nil) { // without repeating it
			return nil, errors.New("wiggle: dial: the server's URL has a user or a password in it, and the server takes neither there:" +
				" want http://host:port or https://host, and a key by WithAPIKey")
		}
		if err != nil {
			return nil, fmt.Errorf("wiggle: dial: %w", err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("wiggle: dial %q: want http://host:port or https://host", text)
		}
		if len(s.urls) > 0 && u.Scheme != s.urls[0].Scheme {
			return nil, fmt.Errorf("wiggle: dial %q: the servers of one client are all http or all https", text)
		}
		s.urls = append(s.urls, u)
	}
	s.current.Store(uint32(rand.IntN(len(s.urls)))) //nolint:gosec // an index, and nobody gains by guessing it
	return s, nil
}

// over makes calls through an HTTP client to whichever server is the present one.
func (s *servers) over(client connect.HTTPClient) connect.HTTPClient {
	if len(s.urls) == 1 {
		return client
	}
	return serversClient{s, client}
}

type serversClient struct {
	servers *servers
	client  connect.HTTPClient
}

// Do implements [connect.HTTPClient].
func (c serversClient) Do(req *http.Request) (*http.Response, error) {
	s := c.servers
	to, u := s.urls[int(s.current.Load())%len(s.urls)], *req.URL
	u.Scheme, u.Host = to.Scheme, to.Host
	u.Path = strings.TrimSuffix(to.Path, "/") + strings.TrimPrefix(u.Path, strings.TrimSuffix(s.urls[0].Path, "/"))
	req = req.WithContext(req.Context()) // a copy
	req.URL, req.Host = &u, u.Host
	return c.client.Do(req)
}

// turn goes on to the next server if the one that was the present one is away.
func (s *servers) turn(was uint32, err error) {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded:
		s.current.CompareAndSwap(was, (was+1)%uint32(len(s.urls))) //nolint:gosec // few
	}
}

// WrapUnary implements [connect.Interceptor].
func (s *servers) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		was := s.current.Load()
		res, err := next(ctx, req)
		if err != nil {
			s.turn(was, err)
		}
		return res, err
	}
}

// WrapStreamingClient implements [connect.Interceptor].
func (s *servers) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return serversConn{next(ctx, spec), s, s.current.Load()}
	}
}

// WrapStreamingHandler implements [connect.Interceptor].
func (s *servers) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

type serversConn struct {
	connect.StreamingClientConn

	servers *servers
	was     uint32
}

// Receive implements [connect.StreamingClientConn].
func (c serversConn) Receive(message any) error {
	err := c.StreamingClientConn.Receive(message)
	if err != nil {
		c.servers.turn(c.was, err)
	}
	return err
}
