package policy

import (
	"fmt"

	"github.com/wiggle-run/wiggle/pkg/permission"
)

// Beyond returns the first of the permissions that somebody who has the others may not give, take or act upon (AUT-3):
// nobody can give what they do not have. ok if there is none.
func Beyond(have permission.Set, permissions []string) (missing string, ok bool, err error) {
	set, err := permission.NewSet(permissions)
	if err != nil {
		return "", false, fmt.Errorf("read permissions: %w", err)
	}
	if p, ok := have.Covers(set); !ok {
		return p.String(), false, nil
	}
	return "", true, nil
}
