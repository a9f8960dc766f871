package dev

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/settings"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
	"github.com/wiggle-run/wiggle/services/auth"
)

const (
	// adminName is the administrator's, whose password is in adminFile of the data directory.
	adminName = "admin"
	adminFile = "admin-password"
)

// authConfig is the configuration of the auth service. Where callers are checked, the first start makes an administrator.
func (s *Stack) authConfig() (auth.Config, error) {
	cfg := auth.Config{NATS: bus.Config{URLs: []string{s.NATSURL}}, Grace: grace}
	if !s.opts.Auth {
		return cfg, nil
	}
	s.AdminName, s.AdminPasswordFile = adminName, filepath.Join(s.DataDir, adminFile)
	password, err := s.adminPassword()
	if err != nil {
		return cfg, err
	}
	cfg.AdminName, cfg.AdminPassword = adminName, settings.Secret(password)
	return cfg, nil
}

// adminPassword reads the administrator's password, and makes one where there is none yet.
func (s *Stack) adminPassword() (string, error) {
	text, err := os.ReadFile(s.AdminPasswordFile)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(rand.Text())
		err = os.WriteFile(s.AdminPasswordFile, text, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("the administrator's password: %w", err)
	}
	return string(text), nil
}

// dial makes the client. Where callers are checked it is signed in as the administrator.
func (s *Stack) dial(ctx context.Context) error {
	options := []wiggle.ClientOption{wiggle.WithLogger(s.logger), wiggle.WithTracerProvider(s.tracers), wiggle.WithAPIKey("")}
	if s.opts.Auth {
		token, err := s.signIn(ctx, options)
		if err != nil {
			return err
		}
		options = append(options, wiggle.WithAPIKey(token))
	}
	var err error
	s.Client, err = wiggle.Dial(s.URL, options...)
	return err
}

func (s *Stack) signIn(ctx context.Context, options []wiggle.ClientOption) (token string, err error) {
	password, err := s.adminPassword()
	if err != nil {
		return "", err
	}
	nobody, err := wiggle.Dial(s.URL, options...)
	if err != nil {
		return "", err
	}
	defer nobody.Close()
	auth := wigglev1connect.NewAuthServiceClient(nobody.Generated())
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	look := time.NewTicker(readyEvery)
	defer look.Stop()
	for {
		res, err := auth.SignIn(ctx, &wigglev1.SignInRequest{Name: s.AdminName, Password: password})
		if err == nil {
			return res.GetToken(), nil
		}
		failed := fmt.Errorf("sign in as %s with the password in %s (wiggle dev --reset starts over): %w",
			s.AdminName, s.AdminPasswordFile, wiggle.AsError("sign in", err))
		if connect.CodeOf(err) != connect.CodeUnavailable {
			return "", failed
		}
		select { // the auth shard is opened after home
		case <-look.C:
		case <-ctx.Done():
			return "", failed
		}
	}
}

func (s *Stack) closeClient() {
	if s.Client != nil {
		s.Client.Close()
	}
}
