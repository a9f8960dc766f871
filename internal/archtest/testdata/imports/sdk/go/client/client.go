// Package client depends on little.
package client

import (
	_ "connectrpc.com/connect"
	_ "github.com/wiggle-run/wiggle/pkg/faults"
	_ "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	_ "go.opentelemetry.io/otel/sdk/trace"
	_ "go.opentelemetry.io/otel/trace"
)
