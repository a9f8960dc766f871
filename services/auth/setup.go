package auth

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/wiggle-run/wiggle/services/auth/internal/authstore"
	"github.com/wiggle-run/wiggle/services/auth/internal/credential"
)

// adminError tells that the settings of the first administrator are wrong, which only shows when one is to be made.
type adminError struct{ err error }

func (e *adminError) Error() string { return e.err.Error() }
func (e *adminError) Unwrap() error { return e.err }

// firstAdmin sees to it that there is an administrator, or a way to make one (AUT-7). Of several processes that start at the
// same time one does; what it decides by is read under the lock of changes.
func (s *Service) firstAdmin(ctx context.Context) error {
	has, err := s.store.HasAdmin(ctx)
	switch {
	case err != nil || has:
		return err
	case s.cfg.AdminName != "":
		return s.makeAdmin(ctx)
	case s.cfg.SetUp != nil:
		return s.offerSetUp(ctx)
	}
	return nil
}

func (s *Service) makeAdmin(ctx context.Context) error {
	given, err := s.cfg.adminPassword()
	if err != nil {
		return &adminError{err}
	}
	hash, err := s.hasher.Hash(ctx, given)
	if err != nil {
		return err
	}
	made := false
	_, err = s.store.Change(ctx, "make the first administrator", func(ctx context.Context, tx *authstore.Tx) error {
		has, err := tx.HasAdmin(ctx)
		if made = !has; err != nil || has {
			return err
		}
		tx.Audit(authstore.Entry{
			Principal: "service", Action: "auth.set_up", Target: s.cfg.AdminName, Allowed: true, Detail: "by " + settingAdminName,
		})
		return tx.MakeAdmin(ctx, s.cfg.AdminName, hash)
	})
	if err == nil && made {
		s.cfg.Logger.InfoContext(ctx, "made the first administrator", slog.String("name", s.cfg.AdminName))
	}
	return err
}

// offerSetUp prints a link by which the first administrator is made, once. It is not logged: logs are read by many, and kept.
func (s *Service) offerSetUp(ctx context.Context) error {
	token, offered := credential.New(credential.SetUp), false
	_, err := s.store.Change(ctx, "offer the set-up", func(ctx context.Context, tx *authstore.Tx) (err error) {
		if offered, err = tx.OfferSetUp(ctx, token); err == nil && offered {
			tx.Audit(authstore.Entry{Principal: "service", Action: "auth.offer_set_up", Target: token.String(), Allowed: true})
		}
		return err
	})
	if err != nil || !offered {
		return err
	}
	s.cfg.Logger.InfoContext(ctx, "there is no administrator; the way to make one is printed on standard error",
		slog.String("token_id", token.ID))
	_, err = fmt.Fprintf(s.cfg.SetUp, `
There is no administrator yet. Make one within 24 hours, once, with

  wiggle login --setup --name NAME

which asks for this token: %s

`, token.Reveal())
	if err != nil {
		return fmt.Errorf("print the set-up link: %w", err)
	}
	return nil
}
