package client_test

import (
	_ "github.com/wiggle-run/wiggle/pkg/faults"
	_ "github.com/wiggle-run/wiggle/sdk/go/client"
	_ "go.opentelemetry.io/otel/sdk/trace"
	_ "go.uber.org/goleak"
	_ "testing"
)
