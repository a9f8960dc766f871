package devstack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is who the server runs as.
type account struct {
	name     string
	uid, gid int
	switched bool // differs from ours, because we are root
}

// serverAccount picks the account: ours, or as root one that PostgreSQL agrees to run under.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 != nil || err2 != nil || uid == 0 {
			continue
		}
		return account{name: name, uid: uid, gid: gid, switched: true}, nil
	}
	return account{}, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody: " +
		"create one (useradd --system postgres) or run as another user")
}

// credential makes a child run as the account; nil if that is what we are.
func (a account) credential() *syscall.Credential {
	if !a.switched {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)} //nolint:gosec // from the user database
}

// own makes path the account's.
func (a account) own(path string) error {
	if !a.switched {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// canReach checks that the account can enter every directory above path, and names the first that it cannot.
func (a account) canReach(path string) error {
	if !a.switched {
		return nil
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if !a.enters(info) {
			return fmt.Errorf("data directory %s cannot be reached by user %s, which PostgreSQL runs as: %s has mode %04o; "+
				"choose another place, such as %s", path, a.name, dir, info.Mode().Perm(), DefaultDataDir())
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

func (a account) enters(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return true
	case int(stat.Uid) == a.uid:
		return info.Mode().Perm()&0o100 != 0
	case int(stat.Gid) == a.gid:
		return info.Mode().Perm()&0o010 != 0
	}
	return info.Mode().Perm()&0o001 != 0
}

// DefaultDataDir is where a development server keeps its data: below the user's data directory, or for root, whose home
// the server's account cannot enter, /var/lib/wiggle-dev.
func DefaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/wiggle-dev"
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "wiggle-dev")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), "wiggle-dev-"+strconv.Itoa(os.Geteuid()))
	}
	return filepath.Join(home, ".local", "share", "wiggle-dev")
}
