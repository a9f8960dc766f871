// Command apidoc writes the reference of the API:
//
//	apidoc DESCRIPTORS DIRECTORY
//
// DESCRIPTORS is a FileDescriptorSet with source information (buf build --as-file-descriptor-set), DIRECTORY gets the pages.
// Pages that are there and are not made any more are removed.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/wiggle-run/wiggle/internal/apidoc"
)

const introduction = `
The services that the router offers on its one port. Each call is at ` + "`/SERVICE/CALL`" + `, by Connect, gRPC and gRPC-Web, in binary
and in JSON; reflection tells the same as these pages. [Clients](../../clients.md) has it by example.

In JSON, fields are in lower camel case (` + "`instance_id`" + ` is ` + "`instanceId`" + `), 64-bit integers are strings, bytes are base64,
` + "`google.protobuf.Timestamp`" + ` is RFC 3339 (` + "`\"2026-10-01T09:00:00Z\"`" + `) and ` + "`google.protobuf.Duration`" + ` is seconds
(` + "`\"1.5s\"`" + `). A field that has its type's zero value is left out. A request that breaks a constraint, which stand in *italics*,
is INVALID_ARGUMENT. Every error carries a [Fault](fault.md#fault) as its detail.
`

func main() {
	if len(os.Args) != 3 {
		_, _ = fmt.Fprintln(os.Stderr, "apidoc: say which descriptors and which directory: apidoc DESCRIPTORS DIRECTORY")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "apidoc:", err)
		os.Exit(1)
	}
}

func write(descriptors, dir string) error {
	content, err := os.ReadFile(descriptors) //nolint:gosec // the caller names it
	if err != nil {
		return err
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(content, &set); err != nil {
		return fmt.Errorf("%s is no FileDescriptorSet: %w", descriptors, err)
	}
	pages, err := apidoc.Pages(&set, apidoc.Options{
		Package: "wiggle.v1", Source: "../../../proto", Introduction: introduction,
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // pages are for everyone to read
		return err
	}
	there, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return err
	}
	for _, path := range there {
		if _, made := pages[filepath.Base(path)]; !made {
			if err := os.Remove(path); err != nil { //nolint:gosec // a page of the directory that the caller names
				return err
			}
		}
	}
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil { //nolint:gosec // as the directory
			return err
		}
	}
	return nil
}
