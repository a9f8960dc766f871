package policy_test

import (
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

func TestActions(t *testing.T) {
	t.Parallel()
	actions := policy.Actions{"instance.read": true, "instance.start": true, "user.manage": false, "user.read": false}
	for text, want := range map[string]string{
		"instance.read": "", "instance.read:a/b": "", "*": "", "*:a": "", "instance.*:a/*": "", "user.*": "", "u*": "",
		"instance.reed": "nearest is instance.read", "usr.*": "nearest is user.*", "x*:a": "there is no action x*", "user.manage:a": "leave out",
		"user.*:a/b": "leave out", "nonsense": "is no action",
	} {
		err := actions.Check(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
