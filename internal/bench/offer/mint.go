package offer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// ulidText is a ulid as ids have it.
type ulidText [ulid.EncodedSize]byte

// mintAll makes ulids of a time.
func mintAll(at time.Time, n int) []ulidText {
	texts := make([]ulidText, n)
	var id ulid.ULID
	_ = id.SetTime(ulid.Timestamp(at)) // fails after the year 10889
	for i := range texts {
		binary.BigEndian.PutUint16(id[6:], uint16(rand.Uint32())) //nolint:gosec // the bits of a ulid in a bench need no secrecy
		binary.BigEndian.PutUint64(id[8:], rand.Uint64())         //nolint:gosec // as above
		_ = id.MarshalTextTo(texts[i][:])                         // it has the size
		for k, c := range texts[i] {
			if c >= 'A' {
				texts[i][k] = c | 0x20
			}
		}
	}
	return texts
}

// startTemplate is a start as bytes, but for its ulid.
type startTemplate struct {
	item []byte // of the list of starts, with its tag and length
	ulid int    // where in it the ulid is
}

func newStartTemplate(workflow string, input []byte) (startTemplate, error) {
	var none ulidText
	for i := range none {
		none[i] = '?'
	}
	one, err := proto.Marshal(&wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{{
		Workflow: workflow, Ulid: string(none[:]), Input: &wigglev1.Payload{ContentType: "application/json", Data: input},
	}}})
	if err != nil {
		return startTemplate{}, fmt.Errorf("encode a start: %w", err)
	}
	return startTemplate{item: one, ulid: bytes.Index(one, none[:])}, nil
}

// startsBytes is a StartInstancesRequest as bytes.
type startsBytes struct{ data []byte }

// starts is a request of one start for each ulid.
func (t *startTemplate) starts(ids []ulidText) *startsBytes {
	data := make([]byte, 0, len(ids)*len(t.item))
	for i := range ids {
		at := len(data) + t.ulid
		data = append(data, t.item...)
		copy(data[at:], ids[i][:])
	}
	return &startsBytes{data}
}

// floodCodec is protobuf's binary encoding, but for requests that are bytes already.
type floodCodec struct{}

// Name is the encoding's, as content types have it.
func (floodCodec) Name() string { return "proto" }

// Marshal encodes a message.
func (floodCodec) Marshal(message any) ([]byte, error) {
	if raw, ok := message.(*startsBytes); ok {
		return raw.data, nil
	}
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", message)
	}
	return proto.Marshal(m)
}

// Unmarshal decodes a message.
func (floodCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", message)
	}
	return proto.Unmarshal(data, m)
}
