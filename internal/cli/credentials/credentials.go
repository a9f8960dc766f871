// Package credentials keeps the sessions that `wiggle login` has begun: tokens by the URL of the server, in a file that its
// owner alone may read. A file that others may read is refused, not mended: what was in it is known by now.
package credentials

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	fileName = "credentials.json"
	fileMode = 0o600
	dirMode  = 0o700
)

// Session is a sign-in at a server.
type Session struct {
	// Name is that of the account.
	Name string `json:"name"`
	// ID of the session, which is no secret.
	ID string `json:"session_id"`
	// Token is what is shown to the server.
	Token string `json:"token"`
	// ExpiresAt is when it ends at the latest.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// String names the session without its token.
func (s Session) String() string { return "session " + s.ID + " of " + s.Name }

// GoString is String.
func (s Session) GoString() string { return s.String() }

// Store is the file with the sessions. Of two programs that write it at once the later one's sessions stay.
type Store struct{ dir string }

// NewStore returns the store below a user's directory for configuration, which is made when it is needed. The empty directory is
// no place: sessions are not found in it and cannot be put.
func NewStore(configDir string) *Store {
	if configDir == "" {
		return &Store{}
	}
	return &Store{filepath.Join(configDir, "wiggle")}
}

// Path is where the file is.
func (s *Store) Path() string { return filepath.Join(s.dir, fileName) }

// document is the file.
type document struct {
	Sessions map[string]Session `json:"sessions"`
}

// Find returns the session at a server; ok if there is one.
func (s *Store) Find(server string) (session Session, ok bool, err error) {
	d, err := s.read()
	if err != nil {
		return Session{}, false, err
	}
	session, ok = d.Sessions[keyOf(server)]
	return session, ok, nil
}

// Put keeps the session at a server, in place of the one before, and forgets those that have ended by now.
func (s *Store) Put(server string, session Session, now time.Time) error {
	d, err := s.read()
	if err != nil {
		return err
	}
	for key, old := range d.Sessions {
		if !old.ExpiresAt.IsZero() && old.ExpiresAt.Before(now) {
			delete(d.Sessions, key)
		}
	}
	d.Sessions[keyOf(server)] = session
	return s.write(d)
}

// Remove forgets the session at a server.
func (s *Store) Remove(server string) error {
	d, err := s.read()
	if err != nil {
		return err
	}
	delete(d.Sessions, keyOf(server))
	return s.write(d)
}

// keyOf is how a server's URL is written in the file.
func keyOf(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return server
	}
	u.Scheme, u.Host, u.User = strings.ToLower(u.Scheme), strings.ToLower(u.Host), nil
	u.Path = strings.TrimRight(u.Path, "/")
	return u.String()
}

func (s *Store) read() (document, error) {
	d := document{Sessions: map[string]Session{}}
	if s.dir == "" {
		return d, nil
	}
	info, err := os.Stat(s.Path())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d, nil
	case err != nil:
		return d, fmt.Errorf("read sessions: %w", err)
	case info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows": // which has no such modes
		return d, fmt.Errorf("%s may be read by others (mode %#o): remove it, sign in again with wiggle login, and change the password "+
			"if somebody else could have read it", s.Path(), info.Mode().Perm())
	}
	text, err := os.ReadFile(s.Path())
	if err != nil {
		return d, fmt.Errorf("read sessions: %w", err)
	}
	if json.Unmarshal(text, &d) != nil { // its error might quote the file
		return d, fmt.Errorf("%s holds no sessions: remove it and sign in again with wiggle login", s.Path())
	}
	if d.Sessions == nil {
		d.Sessions = map[string]Session{}
	}
	return d, nil
}

// write replaces the file as a whole, so that nobody finds half of it.
func (s *Store) write(d document) (err error) {
	if s.dir == "" {
		return errors.New("there is no place to keep the session in: set HOME, or XDG_CONFIG_HOME")
	}
	if err := os.MkdirAll(s.dir, dirMode); err != nil {
		return fmt.Errorf("keep sessions: %w", err)
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fmt.Errorf("keep sessions: %w", err)
	}
	f, err := os.CreateTemp(s.dir, fileName+".*") // for its owner alone
	if err != nil {
		return fmt.Errorf("keep sessions: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Chmod(fileMode), f.Close()); err != nil {
		return fmt.Errorf("keep sessions: %w", err)
	}
	if err := os.Rename(f.Name(), s.Path()); err != nil {
		return fmt.Errorf("keep sessions: %w", err)
	}
	return nil
}
