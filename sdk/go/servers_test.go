package wiggle_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// apart is two servers, by the names in URLs.
type apart map[string]*network

func (a apart) dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, _, _ := strings.Cut(address, ":")
	return a[host].DialContext(ctx, "", "")
}

// TestServers: a client that knows two routers goes on with the other when the one that it uses is away, whichever it began
// with, and also where that answers UNAVAILABLE.
func TestServers(t *testing.T) {
	t.Parallel()
	for _, grpc := range []bool{false, true} {
		a, b := newFake(), newFake()
		for _, f := range []*fake{a, b} {
			f.onRegister = func(*wigglev1.RegisterWorkflowRequest) (*wigglev1.RegisterWorkflowResponse, error) {
				return &wigglev1.RegisterWorkflowResponse{Version: 1}, f.down()
			}
		}
		servers := apart{"a": newNetwork(), "b": newNetwork()}
		servers["a"].serve(t, a.handler())
		servers["b"].serve(t, http.StripPrefix("/below", b.handler()))
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		transport := &http.Transport{DialContext: servers.dial, Protocols: protocols}
		defer transport.CloseIdleConnections()
		options := []wiggle.ClientOption{
			wiggle.WithServers("http://b/below"), wiggle.WithHTTPClient(&http.Client{Transport: transport}),
			wiggle.WithRetries(3, time.Millisecond, time.Millisecond),
		}
		if grpc {
			options = append(options, wiggle.WithGRPC())
		}
		client, err := wiggle.Dial("http://a", options...)
		if err != nil {
			t.Fatal(err)
		}
		register := func() error {
			_, err := client.Register(t.Context(), wiggle.Define("servers", func(f *wiggle.Flow) { f.Task("step") }))
			return err
		}
		for _, away := range []*fake{a, b, a} {
			for _, f := range []*fake{a, b} {
				f.fail(nil)
			}
			away.fail(errDown)
			for range 3 {
				if err := register(); err != nil {
					t.Errorf("grpc %t: %v", grpc, err)
				}
			}
		}
		a.fail(errDown)
		b.fail(errDown)
		if err := register(); err == nil {
			t.Error("a call succeeds although both servers are away")
		}
	}
}

func TestServersRefused(t *testing.T) {
	t.Parallel()
	for _, other := range []string{"", "b:80", "https://b"} {
		if _, err := wiggle.Dial("http://a", wiggle.WithServers(other)); err == nil || !strings.Contains(err.Error(), "dial") {
			t.Errorf("another server %q: %v", other, err)
		}
	}
}

// A server's URL with a user or a password in it is refused without repeating it.
func TestServersWithPasswords(t *testing.T) {
	t.Parallel()
	const secret = "s3cr3t"
	for _, text := range []string{
		"http://u:" + secret + "@h:8420", "http://" + secret + "@h", "http://u:" + secret + "@h:port", "http://u:" + secret + "%zz@h", "x://u:" + secret + "@h",
	} {
		client, err := wiggle.Dial(text)
		if err == nil {
			client.Close()
		}
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
