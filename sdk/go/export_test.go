package wiggle

import (
	"context"
	"net"
	"net/http"
)

// StreamClient is the client that streams go over, with connections of the test's.
func StreamClient(dial func(ctx context.Context, network, address string) (net.Conn, error)) *http.Client {
	t := newTransport(true, nil)
	t.DisableKeepAlives = true
	t.DialContext = dial
	return &http.Client{Transport: t}
}
