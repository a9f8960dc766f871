package cluster

import (
	"context"
	"crypto/rand"
	"fmt"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// WithAuth is an auth process: callers are checked, and the bench and its workers show an API key.
const WithAuth = "auth"

const (
	adminName = "bench"
	// envAPIKey is where workers find the key; the same with _FILE behind it names a file.
	envAPIKey = "WIGGLE_API_KEY"
)

// startAuth starts the auth process, and returns the environment of a router that asks it.
func (c *Cluster) startAuth(address func() string) (routerEnvironment []string, err error) {
	if !c.cfg.with(WithAuth) {
		return []string{"WIGGLE_AUTH=off"}, nil
	}
	c.adminPassword = rand.Text()
	addr := address()
	c.authURL = "http://" + addr
	err = c.startService(processAuth, "", address(), "WIGGLE_AUTH_ADDR="+addr,
		"WIGGLE_AUTH_ADMIN_NAME="+adminName, "WIGGLE_AUTH_ADMIN_PASSWORD="+c.adminPassword)
	return []string{"WIGGLE_AUTH=on", "WIGGLE_AUTH_URLS=" + c.authURL}, err
}

// makeKey makes the key that the bench and its workers show, through the router.
func (c *Cluster) makeKey(ctx context.Context) error {
	if !c.cfg.with(WithAuth) {
		return nil
	}
	if err := c.await(ctx, c.authURL); err != nil {
		return err
	}
	nobody, err := wiggle.Dial(c.URL, wiggle.WithAPIKey(""))
	if err != nil {
		return err
	}
	defer nobody.Close()
	session, err := wigglev1connect.NewAuthServiceClient(nobody.Generated()).
		SignIn(ctx, &wigglev1.SignInRequest{Name: adminName, Password: c.adminPassword})
	if err != nil {
		return fmt.Errorf("sign in: %w", wiggle.AsError("sign in", err))
	}
	admin, err := wiggle.Dial(c.URL, wiggle.WithAPIKey(session.GetToken()))
	if err != nil {
		return err
	}
	defer admin.Close()
	made, err := wigglev1connect.NewKeyServiceClient(admin.Generated()).
		CreateKey(ctx, &wigglev1.CreateKeyRequest{Name: adminName, Roles: []string{"admin"}})
	if err != nil {
		return wiggle.AsError("make a key", err)
	}
	c.apiKey = made.GetSecret()
	return nil
}

// Dial makes a client of the router, with the key that it asks for. That of a cluster which runs already is in the environment.
func (c *Cluster) Dial(options ...wiggle.ClientOption) (*wiggle.Client, error) {
	if c.cfg.Server == "" {
		options = append(options, wiggle.WithAPIKey(c.apiKey))
	}
	return wiggle.Dial(c.URL, options...)
}
