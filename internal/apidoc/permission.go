package apidoc

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// permission says what a caller needs, as the call's option declares it. The services' tests see that each call declares it
// and that it is enforced.
func (w *writer) permission(m protoreflect.MethodDescriptor) string {
	if !proto.HasExtension(m.Options(), wigglev1.E_Permission) {
		return ""
	}
	p, _ := proto.GetExtension(m.Options(), wigglev1.E_Permission).(*wigglev1.Permission)
	switch p.GetAccess() {
	case wigglev1.Access_ACCESS_ANYONE:
		return "Permission: none; anyone may call it."
	case wigglev1.Access_ACCESS_SIGNED_IN:
		return "Permission: none but to be signed in."
	case wigglev1.Access_ACCESS_UNSPECIFIED:
	}
	if p.GetAction() == "" {
		w.problem(m, "declares a permission without an action")
		return ""
	}
	text := "Permission: `" + p.GetAction() + "`"
	if p.GetScope() == wigglev1.Scope_SCOPE_UNSPECIFIED {
		return text + " on the whole cluster."
	}
	scope := strings.ToLower(strings.TrimPrefix(p.GetScope().String(), "SCOPE_"))
	return text + ", which may be limited to a namespace or " + scope + "."
}
