package eventcursor

import (
	"encoding/binary"
	"slices"
)

// Seal makes the text of what may be no cursor.
func Seal(body []byte) string {
	return encoding.EncodeToString(binary.BigEndian.AppendUint32(slices.Clip(body), check(body)))
}
