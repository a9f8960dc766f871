// Command greeting shows the SDK.
package main

import (
	"log"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func main() {}
