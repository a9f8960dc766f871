package pgstore

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// column is one array parameter, written as it is filled in PostgreSQL's binary format
// of arrays: a batch has thirty of them, and going over slices of values once more to
// encode them took a tenth of the time of an instances process.
// https://www.postgresql.org/docs/15/protocol-overview.html#PROTOCOL-FORMAT-CODES; the
// format itself is that of array_send.
type column struct {
	n     int
	nulls bool
	items []byte // each with its length before it; -1 is NULL
}

func (c *column) head(size int) {
	c.n++
	c.items = binary.BigEndian.AppendUint32(c.items, uint32(size)) //nolint:gosec // payloads are bounded
}

func (c *column) null() {
	c.n++
	c.nulls = true
	c.items = binary.BigEndian.AppendUint32(c.items, ^uint32(0))
}

func (c *column) id(id machine.ID) {
	c.head(len(id))
	c.items = append(c.items, id[:]...)
}

// optionalID writes the zero id as NULL.
func (c *column) optionalID(id machine.ID) {
	if id.IsZero() {
		c.null()
		return
	}
	c.id(id)
}

func (c *column) int64(v int64) {
	c.head(8)
	c.items = binary.BigEndian.AppendUint64(c.items, uint64(v)) //nolint:gosec // the bits
}

// optionalInt64 writes 0 as NULL.
func (c *column) optionalInt64(v int64) {
	if v == 0 {
		c.null()
		return
	}
	c.int64(v)
}

func (c *column) int32(v int32) {
	c.head(4)
	c.items = binary.BigEndian.AppendUint32(c.items, uint32(v)) //nolint:gosec // the bits
}

func (c *column) int16(v int16) {
	c.head(2)
	c.items = binary.BigEndian.AppendUint16(c.items, uint16(v)) //nolint:gosec // the bits
}

func (c *column) bool(v bool) {
	c.head(1)
	var b byte
	if v {
		b = 1
	}
	c.items = append(c.items, b)
}

func (c *column) text(v string) {
	c.head(len(v))
	c.items = append(c.items, v...)
}

// optionalText writes the empty text as NULL.
func (c *column) optionalText(v string) {
	if v == "" {
		c.null()
		return
	}
	c.text(v)
}

// bytes writes nil as NULL.
func (c *column) bytes(v []byte) {
	if v == nil {
		c.null()
		return
	}
	c.head(len(v))
	c.items = append(c.items, v...)
}

// epoch is where PostgreSQL counts its microseconds from.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// time writes the zero time as NULL. Nanoseconds are cut off, as PostgreSQL cuts them.
func (c *column) time(t time.Time) {
	if t.IsZero() {
		c.null()
		return
	}
	c.int64(t.Unix()*1e6 + int64(t.Nanosecond())/1e3 - epoch.Unix()*1e6)
}

// uuids are a column of ids.
func uuids(ids []machine.ID) column {
	c := column{items: make([]byte, 0, 20*len(ids))}
	for _, id := range ids {
		c.id(id)
	}
	return c
}

// appendArray appends a column as an array.
func appendArray(buf []byte, c *column, element uint32) []byte {
	var flags uint32
	if c.nulls {
		flags = 1
	}
	if c.n == 0 {
		buf = binary.BigEndian.AppendUint32(buf, 0)
		buf = binary.BigEndian.AppendUint32(buf, flags)
		return binary.BigEndian.AppendUint32(buf, element)
	}
	buf = binary.BigEndian.AppendUint32(buf, 1) // dimension
	buf = binary.BigEndian.AppendUint32(buf, flags)
	buf = binary.BigEndian.AppendUint32(buf, element)
	buf = binary.BigEndian.AppendUint32(buf, uint32(c.n)) //nolint:gosec // rows of a batch
	buf = binary.BigEndian.AppendUint32(buf, 1)           // lower bound
	return append(buf, c.items...)
}

// registerColumns teaches a connection to send columns as arrays.
func registerColumns(m *pgtype.Map) {
	for _, oid := range []uint32{
		pgtype.UUIDArrayOID, pgtype.TimestamptzArrayOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID, pgtype.Int2ArrayOID,
		pgtype.BoolArrayOID, pgtype.TextArrayOID, pgtype.ByteaArrayOID,
	} {
		known, ok := m.TypeForOID(oid)
		if !ok {
			continue
		}
		if array, ok := known.Codec.(*pgtype.ArrayCodec); ok {
			m.RegisterType(&pgtype.Type{Name: known.Name, OID: oid, Codec: columnCodec{array}})
		}
	}
}

// columnCodec is pgx's codec of arrays, which takes columns too.
type columnCodec struct{ *pgtype.ArrayCodec }

// PlanEncode plans how a value is sent.
func (c columnCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.(column); ok && format == pgtype.BinaryFormatCode {
		return columnPlan{element: c.ElementType.OID}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

type columnPlan struct{ element uint32 }

// Encode appends a column.
func (p columnPlan) Encode(value any, buf []byte) ([]byte, error) {
	c, ok := value.(column)
	if !ok {
		return nil, fmt.Errorf("%T is no column", value)
	}
	return appendArray(buf, &c, p.element), nil
}
