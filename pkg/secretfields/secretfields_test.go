package secretfields_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/secretfields"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func TestIn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		message proto.Message
		want    bool
	}{
		{&wigglev1.SignInRequest{}, true},
		{&wigglev1.ImportAccountsRequest{}, true},
		{&wigglev1.CreateKeyResponse{}, true},
		{&wigglev1.WhoAmIRequest{}, false},
		{&wigglev1.StartInstanceRequest{}, false},
		{&wigglev1.Payload{}, false},
	} {
		if got := secretfields.In(c.message.ProtoReflect().Descriptor()); got != c.want {
			t.Errorf("%T: %t", c.message, got)
		}
	}
}

func TestMisfit(t *testing.T) {
	t.Parallel()
	const secret = "4711081547110815"
	for name, c := range map[string]struct {
		message    proto.Message
		body, want string
	}{
		"a number":      {&wigglev1.SignInRequest{}, `{"name":"a","password":` + secret + `}`, "the field password has a value"},
		"another field": {&wigglev1.SignInRequest{}, `{"cookie":"` + secret + `"}`, "the field cookie has a value"},
		"a list in it":  {&wigglev1.ChangePasswordRequest{}, `{"oldPassword":["` + secret + `"]}`, "the field old_password has a value"},
		"no quotes":     {&wigglev1.SignInRequest{}, `{"password":x` + secret + `}`, "not JSON"},
		"a bad escape":  {&wigglev1.SignInRequest{}, `{"password":"\q` + secret + `"}`, "not JSON"},
		"half a pair":   {&wigglev1.SignInRequest{}, `{"password":"\ud800` + secret + `"}`, "the field password has a value"},
		"for the name":  {&wigglev1.SignInRequest{}, `{"` + secret + `":"a"}`, "the fields name, password, cookie"},
		"twice":         {&wigglev1.SignInRequest{}, `{"password":"a","password":"` + secret + `"}`, "each at most once"},
		"behind":        {&wigglev1.SignInRequest{}, `{} ` + secret, "something behind it"},
		"no object":     {&wigglev1.SignInRequest{}, ` "` + secret + `"`, "no object"},
		"a list":        {&wigglev1.SignInRequest{}, `["` + secret + `"]`, "no object"},
		"within":        {&wigglev1.ImportAccountsRequest{}, `{"accounts":[{"name":"a","passwordHash":` + secret + `}]}`, "the field accounts has a value"},
	} {
		if protojson.Unmarshal([]byte(c.body), c.message) == nil {
			t.Errorf("%s: it fits", name)
		}
		err := secretfields.Misfit(c.message.ProtoReflect().Descriptor(), []byte(c.body))
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
