package rpc

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/shardid"
	"github.com/wiggle-run/wiggle/services/instances/internal/dispatch"
	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// instanceID and tokenID write the ids of a shard's rows.
func instanceID(shard int, id machine.ID) string {
	return shardid.NewInstance(shard, ulid.ULID(id)).String()
}

func tokenID(shard int, id machine.ID) string {
	if id.IsZero() {
		return ""
	}
	return shardid.NewToken(shard, ulid.ULID(id)).String()
}

// instance finds the shard that serves an instance's id. An id without a ulid is
// from before sharding; none of those was ever stored in these tables.
func (s *Server) instance(text string) (*dispatch.Shard, machine.ID, error) {
	id, err := shardid.ParseInstance(text)
	if err != nil {
		return nil, machine.ID{}, faults.InvalidArgument("%v", err)
	}
	return s.route(id, "instance")
}

func (s *Server) token(text string) (*dispatch.Shard, machine.ID, error) {
	id, err := shardid.ParseToken(text)
	if err != nil {
		return nil, machine.ID{}, faults.InvalidArgument("%v", err)
	}
	return s.route(id, "task")
}

func (s *Server) route(id shardid.ID, thing string) (*dispatch.Shard, machine.ID, error) {
	shard, err := s.shards.Serving(id.Route(s.shards.Home()))
	if err != nil {
		return nil, machine.ID{}, err
	}
	u, ok := id.ULID()
	if !ok {
		return nil, machine.ID{}, faults.NotFound(thing, id.String())
	}
	return shard, machine.ID(u), nil
}

// A lease is written as its fence and its instance, so that whatever concerns a
// task is locked by its instance without looking the task up.
func leaseText(t *machine.Token) string {
	return strconv.FormatInt(t.Fence, 10) + "." + strings.ToLower(ulid.ULID(t.Instance).String())
}

func parseLease(token machine.ID, text string) (store.Lease, error) {
	const want = "the lease is the text that came with the task, unchanged"
	fence, instance, ok := strings.Cut(text, ".")
	n, err := strconv.ParseInt(fence, 10, 64)
	if !ok || err != nil || n <= 0 {
		return store.Lease{}, faults.InvalidArgument("malformed lease %.60q: %s", text, want)
	}
	id, err := ulid.ParseStrict(strings.ToUpper(instance))
	if err != nil {
		return store.Lease{}, faults.InvalidArgument("malformed lease %.60q: %s", text, want)
	}
	return store.Lease{Instance: machine.ID(id), Token: token, Fence: n}, nil
}

// historyToken is a page token of an instance's history.
func historyToken(k store.HistoryKey) string {
	b := make([]byte, 0, 32)
	b = binary.BigEndian.AppendUint64(b, uint64(k.RecordedAt.UnixMicro()))
	b = binary.BigEndian.AppendUint32(b, uint32(k.Order)) //nolint:gosec // bits
	b = append(b, k.Token[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(k.Position)) //nolint:gosec // bits
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseHistoryToken(text string) (store.HistoryKey, error) {
	const size = 8 + 4 + 16 + 4
	if text == "" {
		return store.HistoryKey{}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != size {
		return store.HistoryKey{}, faults.InvalidArgument("malformed page token %.60q: use the next_page_token of the page before", text)
	}
	return store.HistoryKey{
		RecordedAt: time.UnixMicro(int64(binary.BigEndian.Uint64(b))).UTC(), //nolint:gosec // bits
		Order:      int32(binary.BigEndian.Uint32(b[8:])),                   //nolint:gosec // bits
		Token:      machine.ID(b[12:28]),
		Position:   int32(binary.BigEndian.Uint32(b[28:])), //nolint:gosec // bits
	}, nil
}
