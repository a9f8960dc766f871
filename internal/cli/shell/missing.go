package shell

import (
	"errors"
	"fmt"
	"io"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// ShardError is a shard in a document, and what was wrong with it.
type ShardError struct {
	Shard int    `json:"shard"`
	Error string `json:"error"`
}

// MissingShards are the shards that a partial result is without. Nil is a result that is whole.
func MissingShards(partial *wiggle.PartialError) []ShardError {
	if partial == nil {
		return nil
	}
	var out []ShardError
	for _, m := range partial.Missing {
		text := m.Err.Error()
		if e, ok := errors.AsType[*wiggle.Error](m.Err); ok {
			text = e.Message // without what the command was doing
		}
		out = append(out, ShardError{m.Shard, text})
	}
	return out
}

// WarnMissing says which shards a partial result is without.
func WarnMissing(w io.Writer, partial *wiggle.PartialError) {
	for _, m := range MissingShards(partial) {
		_, _ = fmt.Fprintf(w, "wiggle: shard %d is missing from the result: %s\n", m.Shard, m.Error)
	}
}
