package rpc

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wirerpc "github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/proto/definition"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
	"github.com/wiggle-run/wiggle/services/instances/internal/registry"
)

// Shards are the shards of the process.
//
//nolint:interfacebloat // what the services ask of their process, in one place
type Shards interface {
	// Serving finds a shard that can be used now; a fault if it is not served, or
	// its database is not there.
	Serving(shard int) (*dispatch.Shard, error)
	// Definitions finds the shard's copy of the definitions.
	Definitions(shard int) (*registry.Copy, error)
	// Catalogue finds the list of the shard's definitions.
	Catalogue(shard int) (*registry.Catalogue, error)
	// Reads finds where the shard can be read.
	Reads(shard int) (*reads.Shard, error)
	// Home is the number of the cluster's home shard.
	Home() int
	// Status tells how the process and its shards are. It asks no database.
	Status() *internalv1.StatusResponse
	// All lists the shards that the process serves, usable now or not.
	All() []*dispatch.Shard
}

// Server implements the services.
type Server struct {
	shards Shards
	limits definition.Limits
	log    *slog.Logger
	// unconfirmed are the tasks that broken streams sent last.
	unconfirmed unconfirmed
}

// New makes the server.
func New(shards Shards, limits definition.Limits, log *slog.Logger) *Server {
	return &Server{shards: shards, limits: limits, log: log}
}

// named finds the shard that the caller names in the header.
func (s *Server) named(ctx context.Context) (*dispatch.Shard, error) {
	id, ok := wirerpc.ShardFromContext(ctx)
	if !ok {
		return nil, faults.InvalidArgument("the call names no shard: set the header %s, or call the router", wirerpc.ShardHeader)
	}
	return s.shards.Serving(id)
}

// namespace fills in the default.
func namespace(name string) string {
	if name == "" {
		return "default"
	}
	return name
}

// clean refuses text that no database keeps.
func clean(what, text string, most int) error {
	switch {
	case len(text) > most:
		return faults.InvalidArgument("the %s is %d bytes long, at most %d are allowed", what, len(text), most)
	case strings.ContainsRune(text, 0):
		return faults.InvalidArgument("the %s %q holds a NUL character, which cannot be stored", what, text)
	}
	return nil
}

// span reads a duration within bounds; absent is the default.
func span(what string, d *durationpb.Duration, otherwise, least, most time.Duration) (time.Duration, error) {
	if d == nil {
		return otherwise, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, faults.InvalidArgument("%s: %v", what, err)
	}
	v := d.AsDuration()
	if v < least || v > most {
		return 0, faults.InvalidArgument("%s is %s, want %s to %s", what, v, least, most)
	}
	return v, nil
}

func payload(p *wigglev1.Payload) machine.Payload {
	if p == nil {
		return machine.Payload{}
	}
	data := p.GetData()
	if data == nil {
		data = []byte{} // a payload that is there, and empty
	}
	return machine.Payload{ContentType: p.GetContentType(), Data: data}
}

func payloadProto(p machine.Payload) *wigglev1.Payload {
	if p.Absent() {
		return nil
	}
	kind := p.ContentType
	if kind == "" {
		kind = "application/json"
	}
	return &wigglev1.Payload{ContentType: kind, Data: p.Data}
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil || t.CheckValid() != nil {
		return time.Time{}
	}
	return t.AsTime()
}
