package wiggle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"

	"google.golang.org/protobuf/encoding/protojson"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Payload is a value as bytes. A handler that takes or returns it, and a start
// whose input it is, hands the bytes through as they are. Everything else is
// JSON.
type Payload struct {
	// ContentType is the media type. Empty means application/json.
	ContentType string
	// Data are the bytes.
	Data []byte
}

const jsonType = "application/json"

// encode makes a payload of a user's value.
func encode(v any) (*wigglev1.Payload, error) {
	switch v := v.(type) {
	case Payload:
		return &wigglev1.Payload{ContentType: v.ContentType, Data: v.Data}, nil
	case *Payload:
		if v != nil {
			return &wigglev1.Payload{ContentType: v.ContentType, Data: v.Data}, nil
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // the value goes to a database, not into a page
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T as JSON: %w", v, err)
	}
	return &wigglev1.Payload{Data: bytes.TrimSuffix(b.Bytes(), []byte("\n"))}, nil
}

// decode reads a payload into a pointer to a user's value. An absent payload, like
// JSON null, leaves the value as it is.
func decode(p *wigglev1.Payload, into any) error {
	data := p.GetData()
	if p.GetJson() != nil { // a server answers it only to JSON clients
		var err error
		if data, err = protojson.Marshal(p.GetJson()); err != nil {
			return fmt.Errorf("decode structured JSON: %w", err)
		}
	}
	if raw, ok := into.(*Payload); ok {
		*raw = Payload{ContentType: p.GetContentType(), Data: data}
		return nil
	}
	if !isJSON(p.GetContentType()) {
		return fmt.Errorf("decode into %T: the value is %s, not JSON: take it as a wiggle.Payload", into, p.GetContentType())
	}
	if len(data) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber() // an integer above 2^53 must survive an any
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("decode JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("decode JSON: there is more after the value")
	}
	return nil
}

func isJSON(contentType string) bool {
	if contentType == "" || contentType == jsonType {
		return true
	}
	t, _, err := mime.ParseMediaType(contentType)
	return err == nil && t == jsonType
}
