package rpc

import (
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// knownActions are the actions that the public calls of this release need.
var knownActions = sync.OnceValue(func() policy.Actions {
	actions := policy.Actions{}
	protoregistry.GlobalFiles.RangeFilesByPackage("wiggle.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				if p := permissionOf(methods.Get(j)); p.GetAction() != "" {
					actions[p.GetAction()] = actions[p.GetAction()] || p.GetScope() != wigglev1.Scope_SCOPE_UNSPECIFIED
				}
			}
		}
		return true
	})
	return actions
})
