package ledger

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// What is what a line tells.
type What string

const (
	// Given: a poll gave the lease to the worker.
	Given What = "given"
	// Done: a report was answered as applied.
	Done What = "done"
	// Failed: a failed attempt was answered as applied.
	Failed What = "failed"
	// Refused: a report or failure was answered with a lost lease.
	Refused What = "refused"
	// Returning: the worker is about to release the lease. Written before, as a
	// release is not in the history.
	Returning What = "returning"
	// Again: a call that had been answered as applied was sent once more, and was
	// answered so again.
	Again What = "again"
	// Denied: it was refused, which it must not be.
	Denied What = "denied"
	// Strange: a call was answered in a way that no outage explains.
	Strange What = "strange"
)

// Line is one thing that a worker was told.
type Line struct {
	What     What      `json:"what"`
	At       time.Time `json:"at"`
	Worker   string    `json:"worker"`
	Instance string    `json:"instance"`
	Task     string    `json:"task"`
	Fence    int64     `json:"fence"`
	Step     string    `json:"step"`
	Attempt  int32     `json:"attempt"`
	Text     string    `json:"text,omitempty"`
}

// String is the line as it is in the file.
func (l Line) String() string {
	text, err := json.Marshal(l)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Journal is a file of lines that any number of processes may append to.
type Journal struct{ file *os.File }

// OpenJournal opens a journal for appending.
func OpenJournal(path string) (*Journal, error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Journal{file: f}, nil
}

// Write appends lines by one call to the system: they are there as a whole or not
// at all, whenever the process dies.
func (j *Journal) Write(lines ...Line) error {
	var text []byte
	for _, l := range lines {
		text = append(append(text, l.String()...), '\n')
	}
	_, err := j.file.Write(text)
	return err
}

// ReadJournal reads every line of a journal; one that does not exist has none.
func ReadJournal(path string) ([]Line, error) {
	text, err := os.ReadFile(filepath.Clean(path))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var lines []Line
	for i, raw := range bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n")) {
		if len(raw) == 0 {
			continue
		}
		var l Line
		if err := json.Unmarshal(raw, &l); err != nil {
			return nil, fmt.Errorf("line %d of %s: %w", i+1, path, err)
		}
		lines = append(lines, l)
	}
	return lines, nil
}
