package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/authstore"
	"github.com/wiggle-run/wiggle/services/auth/internal/credential"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

const (
	manageKeys = "key.manage"
	keyList    = "keys"
	// maxLasts bounds how long a key lasts that is said to end.
	maxLasts = 100 * 365 * 24 * time.Hour
)

// CreateKey implements wigglev1connect.KeyServiceHandler.
func (s *Server) CreateKey(ctx context.Context, req *wigglev1.CreateKeyRequest) (*wigglev1.CreateKeyResponse, error) {
	if err := checkNewKey(req); err != nil {
		return nil, err
	}
	minted := credential.New(credential.Key)
	res := &wigglev1.CreateKeyResponse{}
	a := act{permission: manageKeys, action: "key.create", target: req.GetName()}
	err := s.change(ctx, a, func(ctx context.Context, c *change) error {
		if err := c.mayHave(req.GetRoles(), req.GetPermissions()); err != nil {
			return err
		}
		if err := c.keyIsFree(ctx, req.GetName(), req.GetCertificateSubject()); err != nil {
			return err
		}
		key := authstore.Key{
			ID: minted.ID, Name: req.GetName(), Roles: req.GetRoles(), Permissions: req.GetPermissions(), CreatedBy: c.caller.name(),
			CreatedAt: c.Now, CertificateSubject: req.GetCertificateSubject(), Owner: c.owner,
		}
		if lasts := req.GetLasts().AsDuration(); lasts > 0 {
			key.ExpiresAt = c.Now.Add(lasts)
		}
		var hash []byte
		res.Secret = ""
		if key.CertificateSubject == "" {
			hash, res.Secret = minted.Hash(), minted.Reveal()
		}
		res.Key = wireKey(key, c.Now)
		c.detail = fmt.Sprintf("id %s, roles %v, permissions %v", key.ID, key.Roles, key.Permissions)
		return c.InsertKey(ctx, key, hash)
	})
	if err != nil {
		return nil, err
	}
	return res, nil
}

func checkNewKey(req *wigglev1.CreateKeyRequest) error {
	if !policy.ValidName(req.GetName()) {
		return invalidName("name", req.GetName())
	}
	if strings.ContainsFunc(req.GetCertificateSubject(), unicode.IsControl) {
		return faults.InvalidArgument("certificate_subject: has letters that no subject has; write it as CN=worker-7,O=Example")
	}
	if lasts := req.GetLasts(); lasts != nil && (!lasts.IsValid() || lasts.AsDuration() < 0 || lasts.AsDuration() > maxLasts) {
		return faults.InvalidArgument("lasts: is %s; it is 0 for ever, or up to %s", lasts.AsDuration(), maxLasts)
	}
	return checkActions("permissions", req.GetPermissions(), nil)
}

// mayHave is an error if one of the roles is none, or the caller may not give what is asked for.
func (c *change) mayHave(roles, permissions []string) error {
	if name, missing := c.Roles.Missing(roles); missing {
		return faults.NotFound("role", name)
	}
	return c.beyond(c.Roles.Permissions(roles, permissions))
}

func (c *change) keyIsFree(ctx context.Context, name, subject string) error {
	nameTaken, subjectTaken, err := c.KeyTaken(ctx, name, subject)
	switch {
	case err != nil:
		return err
	case nameTaken:
		return faults.AlreadyExists("key", name)
	case subjectTaken:
		return faults.AlreadyExists("key for the certificate", subject)
	}
	return nil
}

// ListKeys implements wigglev1connect.KeyServiceHandler.
func (s *Server) ListKeys(ctx context.Context, req *wigglev1.ListKeysRequest) (*wigglev1.ListKeysResponse, error) {
	if err := s.opened(); err != nil {
		return nil, err
	}
	after, err := pageStart(keyList, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	size := pageSize(req.GetPageSize())
	keys, now, err := s.store.Keys(ctx, after, size+1)
	if err != nil {
		return nil, s.fault(err)
	}
	res := &wigglev1.ListKeysResponse{}
	if len(keys) > size {
		keys = keys[:size]
		res.NextPageToken = pageToken(keyList, keys[size-1].Name)
	}
	for _, k := range keys {
		res.Keys = append(res.Keys, wireKey(k, now))
	}
	return res, nil
}

// RotateKey implements wigglev1connect.KeyServiceHandler. Whoever gets the secret can do what the key can, so the caller must
// be able to do that already.
func (s *Server) RotateKey(ctx context.Context, req *wigglev1.RotateKeyRequest) (*wigglev1.RotateKeyResponse, error) {
	overlap := policy.DefaultOverlap
	if o := req.GetOverlap(); o != nil {
		overlap = o.AsDuration()
		if !o.IsValid() || overlap < 0 || overlap > policy.MaxOverlap {
			return nil, faults.InvalidArgument("overlap: is %s; allowed is 0 to %s", overlap, policy.MaxOverlap)
		}
	}
	res := &wigglev1.RotateKeyResponse{}
	err := s.change(ctx, act{permission: manageKeys, action: "key.rotate", target: req.GetKey()},
		func(ctx context.Context, c *change) error {
			key, err := c.key(ctx, req.GetKey())
			if err != nil {
				return err
			}
			if key.CertificateSubject != "" {
				return faults.FailedPrecondition("key %s is a certificate, which has no secret to rotate: issue another certificate",
					key.Name)
			}
			if err := c.beyond(c.Roles.Permissions(key.Roles, key.Permissions)); err != nil {
				return err
			}
			minted := credential.Rotated(credential.Key, key.ID)
			key.OldSecretUntil = time.Time{}
			if overlap > 0 {
				key.OldSecretUntil = c.Now.Add(overlap)
			}
			c.Forget(key.ID)
			c.detail = fmt.Sprintf("id %s, overlap %s", key.ID, overlap)
			res.Key, res.Secret = wireKey(key, c.Now), minted.Reveal()
			return c.RotateKey(ctx, key.ID, minted.Hash(), key.OldSecretUntil)
		})
	if err != nil {
		return nil, err
	}
	return res, nil
}

// RevokeKey implements wigglev1connect.KeyServiceHandler. It takes away and gives nothing, so it needs no more than the
// permission: a leaked key is not to wait for an administrator.
func (s *Server) RevokeKey(ctx context.Context, req *wigglev1.RevokeKeyRequest) (*wigglev1.RevokeKeyResponse, error) {
	err := s.change(ctx, act{permission: manageKeys, action: "key.revoke", target: req.GetKey()},
		func(ctx context.Context, c *change) error {
			key, err := c.key(ctx, req.GetKey())
			if err != nil {
				return err
			}
			c.detail = fmt.Sprintf("id %s, name %s", key.ID, key.Name)
			return c.DeleteKey(ctx, key.ID)
		})
	if err != nil {
		return nil, err
	}
	return &wigglev1.RevokeKeyResponse{}, nil
}

func (c *change) key(ctx context.Context, idOrName string) (authstore.Key, error) {
	key, err := c.Key(ctx, idOrName)
	if errors.Is(err, authstore.ErrNotFound) {
		err = faults.NotFound("key", idOrName)
	}
	return key, err
}

func invalidName(field, name string) error {
	return faults.Invalid(faults.Problem(field,
		"%q is no name: it has letters, digits and . _ @ + -, and begins with a letter or digit", name))
}
