package faults_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/faults"
)

// No fault repeats the secret of a credential that somebody gave for a name or an id, in whatever field.
func TestFaultsHideCredentials(t *testing.T) {
	t.Parallel()
	const secret = "S3cretS3cretS3cretS3cretS3cretS3cretS3cretS3crets"
	for _, kind := range []string{"wgk", "wgs", "wgi"} {
		whole := kind + "_0123456789abcdef_" + secret
		for _, given := range []string{whole, whole[:len(whole)-3], "<" + whole + ">", strings.Repeat("x ", 50) + whole} {
			for _, err := range []*faults.Error{
				faults.NotFound("key", given), faults.AlreadyExists("account", given), faults.InvalidArgument("no name: %q", given),
				faults.Invalid(faults.Problem("name", "%q is no name", given), faults.Problem(given, "is no field")),
				faults.PermissionDenied("key.manage", given), faults.LeaseLost(given), faults.WrongState(given, "COMPLETED"),
			} {
				if text := fmt.Sprint(err, err.ToProto()); strings.Contains(text, secret[:16]) {
					t.Errorf("%q is repeated: %s", given, text)
				}
			}
			if text := faults.NotFound("key", given).Error(); len(given) <= len(whole)+2 && !strings.Contains(text, kind+"_0123456789abcdef_[hidden]") {
				t.Errorf("%q is not named by its id: %s", given, text)
			}
		}
	}
	for _, innocent := range []string{"", "wiggle", "wgk_0123456789abcdef", "wgk_prod_1", "a wgk_ b", "wgk_prod_[hidden]"} {
		if got := faults.Hide(innocent); got != innocent {
			t.Errorf("%q became %q", innocent, got)
		}
	}
}
