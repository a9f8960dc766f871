package rpc

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
)

// Raw is a message of schema T of which only the bytes are handled: whoever passes messages on pays for none that it
// does not read. The bytes are those of protobuf, also where a client speaks JSON; they may be malformed, and nothing has
// checked them. Give [Server.RawOptions] to a handler and [RawClientOption] to a client of Raw messages. *T must be a
// proto.Message.
type Raw[T any] struct{ Bytes []byte }

// raw is what codecs see of a Raw.
type raw interface {
	set(b []byte)
	get() []byte
	schema() (proto.Message, error)
}

func (r *Raw[T]) set(b []byte) { r.Bytes = b }
func (r *Raw[T]) get() []byte  { return r.Bytes }

func (r *Raw[T]) schema() (proto.Message, error) {
	m, ok := any(new(T)).(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a proto.Message", m)
	}
	return m, nil
}

// RawOptions are [Server.Options] for a handler whose messages are Raw.
func (s *Server) RawOptions() []connect.HandlerOption {
	options := append([]connect.HandlerOption{}, s.options...)
	options = append(options, connect.WithCodec(rawProto{}))
	for _, codec := range NewServerJSONCodecs(s.cfg.Payloads) {
		options = append(options, connect.WithCodec(rawJSON{codec}))
	}
	return options
}

// RawClientOption is what a client of Raw messages needs beside [NewClientOptions].
func RawClientOption() connect.ClientOption { return connect.WithCodec(rawProto{}) }

// rawProto is the codec of protobuf's bytes. It also writes the messages in which gRPC tells errors.
type rawProto struct{}

// Name implements [connect.Codec].
func (rawProto) Name() string { return "proto" }

// Marshal implements [connect.Codec].
func (c rawProto) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend appends the message to dst.
func (rawProto) MarshalAppend(dst []byte, message any) ([]byte, error) {
	switch m := message.(type) {
	case raw:
		return append(dst, m.get()...), nil
	case proto.Message:
		return proto.MarshalOptions{}.MarshalAppend(dst, m)
	}
	return nil, fmt.Errorf("%T is neither a Raw nor a proto.Message", message)
}

// Unmarshal implements [connect.Codec].
func (rawProto) Unmarshal(data []byte, message any) error {
	switch m := message.(type) {
	case raw:
		m.set(append([]byte(nil), data...)) // data is used again
		return nil
	case proto.Message:
		return proto.Unmarshal(data, m)
	}
	return fmt.Errorf("%T is neither a Raw nor a proto.Message", message)
}

// rawJSON translates between a client's JSON and protobuf's bytes.
type rawJSON struct{ *JSONCodec }

// Marshal implements [connect.Codec].
func (c rawJSON) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend appends the message to dst.
func (c rawJSON) MarshalAppend(dst []byte, message any) ([]byte, error) {
	r, ok := message.(raw)
	if !ok {
		return c.JSONCodec.MarshalAppend(dst, message)
	}
	m, err := r.schema()
	if err != nil {
		return nil, err
	}
	if err := proto.Unmarshal(r.get(), m); err != nil {
		return nil, fmt.Errorf("read a message to pass it on: %w", err)
	}
	return c.JSONCodec.MarshalAppend(dst, m)
}

// Unmarshal implements [connect.Codec].
func (c rawJSON) Unmarshal(text []byte, message any) error {
	r, ok := message.(raw)
	if !ok {
		return c.JSONCodec.Unmarshal(text, message)
	}
	m, err := r.schema()
	if err != nil {
		return err
	}
	if err := c.JSONCodec.Unmarshal(text, m); err != nil {
		return err
	}
	data, err := proto.Marshal(m)
	if err != nil {
		return errors.New("the body holds text that is not UTF-8")
	}
	r.set(data)
	return nil
}
