// Package extra is a leaf.
package extra

import (
	_ "fmt"
	_ "github.com/wiggle-run/wiggle/pkg/shardid"
	_ "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	_ "google.golang.org/protobuf/proto"
)
