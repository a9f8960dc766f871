package pgstore

import (
	"bytes"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/wiggle-run/wiggle/services/instances/internal/machine"
)

// TestColumns: what columns send, PostgreSQL reads as the values that they were given.
func TestColumns(t *testing.T) {
	t.Parallel()
	pool := open(t)
	at := time.Date(1969, 12, 31, 23, 59, 59, 123456789, time.UTC)
	var id, i8, i4, i2, b, text, data, times column
	id.id(machine.ID{1, 2, 3})
	id.optionalID(machine.ID{})
	for _, v := range []int64{1 << 62, -1, 0} {
		i8.int64(v)
		i8.optionalInt64(v)
	}
	i4.int32(-1 << 31)
	i2.int16(-1 << 15)
	b.bool(true)
	b.bool(false)
	text.text("ü")
	text.text("")
	data.bytes([]byte{0, 255})
	data.bytes([]byte{})
	data.bytes(nil)
	times.time(at)
	times.time(time.Time{})
	times.time(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))
	var got string
	if err := pool.QueryRow(t.Context(), `select concat_ws(' ', $1::uuid[], $2::bigint[], $3::integer[], $4::smallint[], $5::boolean[], $6::text[],
		$7::bytea[], (select array_agg(extract(epoch from u)) from unnest($8::timestamptz[]) u), $9::text[])`,
		id, i8, i4, i2, b, text, data, times, column{}).Scan(&got); err != nil {
		t.Fatal(err)
	}
	want := `{01020300-0000-0000-0000-000000000000,NULL} {4611686018427387904,4611686018427387904,-1,-1,0,NULL} {-2147483648} {-32768} {t,f} ` +
		`{ü,""} {"\\x00ff","\\x",NULL} {-0.876544,NULL,253402214400.000000} {}`
	if got != want {
		t.Errorf("PostgreSQL read\n%s, want\n%s", got, want)
	}
}

// TestColumnsAreArrays: a column is, byte for byte, what pgx sends of the same values.
func TestColumnsAreArrays(t *testing.T) {
	t.Parallel()
	m := pgtype.NewMap()
	want, err := m.Encode(pgtype.Int4ArrayOID, pgtype.BinaryFormatCode, []int32{1, -1, 7}, nil)
	if err != nil {
		t.Fatal(err)
	}
	registerColumns(m)
	var c column
	for _, v := range []int32{1, -1, 7} {
		c.int32(v)
	}
	got, err := m.Encode(pgtype.Int4ArrayOID, pgtype.BinaryFormatCode, c, nil)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("sent %x, want %x: %v", got, want, err)
	}
	if again, err := m.Encode(pgtype.Int4ArrayOID, pgtype.BinaryFormatCode, []int32{1, -1, 7}, nil); err != nil || !bytes.Equal(again, want) {
		t.Errorf("a slice is sent as %x, want %x: %v", again, want, err)
	}
}
