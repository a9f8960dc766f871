package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/internal/cli/timeline"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// printJSON prints the one document of a command.
func (p *Program) printJSON(document any) error {
	encoder := json.NewEncoder(p.Out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(document); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func (p *Program) printf(format string, args ...any) { _, _ = fmt.Fprintf(p.Out, format, args...) }

// when shows an instant.
func (p *Program) when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.In(p.Location).Format("2006-01-02 15:04:05")
}

// took is how long an instance has taken, so far or in all.
func (p *Program) took(i *wiggle.Instance) string {
	end := i.EndedAt
	if end.IsZero() {
		end = p.Now()
	}
	return timeline.Duration(max(0, end.Sub(i.CreatedAt)))
}

// payloadJSON is a payload in a document: JSON as it is, anything else with its type.
func payloadJSON(v wiggle.Payload) any {
	switch {
	case len(v.Data) == 0 && v.ContentType == "":
		return nil
	case json.Valid(v.Data):
		return json.RawMessage(v.Data)
	case v.ContentType == "" && utf8.Valid(v.Data):
		return string(v.Data) // JSON that history has cut
	}
	return map[string]any{"content_type": v.ContentType, "data": v.Data}
}

// payloadText is a payload for people.
func payloadText(v wiggle.Payload) string {
	if len(v.Data) == 0 {
		return "(none)"
	}
	var pretty bytes.Buffer
	if json.Indent(&pretty, v.Data, "", "  ") == nil {
		return pretty.String()
	}
	if utf8.Valid(v.Data) {
		return string(v.Data)
	}
	return fmt.Sprintf("(%d bytes of %s)", len(v.Data), v.ContentType)
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by)
}

// document types of -o json

type instanceJSON struct {
	ID           string        `json:"id"`
	Namespace    string        `json:"namespace,omitempty"`
	Workflow     string        `json:"workflow"`
	Version      int           `json:"version"`
	State        string        `json:"state"`
	Priority     int           `json:"priority"`
	CreatedAt    *time.Time    `json:"created_at,omitempty"`
	EndedAt      *time.Time    `json:"ended_at,omitempty"`
	Context      any           `json:"context,omitempty"`
	Failure      *failureJSON  `json:"failure,omitempty"`
	Tokens       []tokenJSON   `json:"tokens,omitempty"`
	ActiveTokens int           `json:"active_tokens,omitempty"`
	History      []historyJSON `json:"history,omitempty"`
}

type failureJSON struct {
	Type    string `json:"type,omitempty"`
	Message string `json:"message"`
	Stack   string `json:"stack,omitempty"`
	Node    string `json:"node,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	Worker  string `json:"worker,omitempty"`
}

type tokenJSON struct {
	ID              string       `json:"id"`
	ParentID        string       `json:"parent_id,omitempty"`
	Node            string       `json:"node"`
	State           string       `json:"state"`
	Attempt         int          `json:"attempt,omitempty"`
	Branch          string       `json:"branch,omitempty"`
	DueAt           *time.Time   `json:"due_at,omitempty"`
	Worker          string       `json:"worker,omitempty"`
	LeaseExpiresAt  *time.Time   `json:"lease_expires_at,omitempty"`
	LastFailure     *failureJSON `json:"last_failure,omitempty"`
	PendingBranches int          `json:"pending_branches,omitempty"`
}

type historyJSON struct {
	Kind            string       `json:"kind"`
	RecordedAt      *time.Time   `json:"recorded_at,omitempty"`
	TokenID         string       `json:"token_id,omitempty"`
	Node            string       `json:"node,omitempty"`
	Step            string       `json:"step,omitempty"`
	Attempt         int          `json:"attempt,omitempty"`
	Worker          string       `json:"worker,omitempty"`
	QueuedAt        *time.Time   `json:"queued_at,omitempty"`
	DispatchedAt    *time.Time   `json:"dispatched_at,omitempty"`
	StartedAt       *time.Time   `json:"started_at,omitempty"`
	FinishedAt      *time.Time   `json:"finished_at,omitempty"`
	Output          any          `json:"output,omitempty"`
	OutputTruncated bool         `json:"output_truncated,omitempty"`
	Answer          string       `json:"answer,omitempty"`
	Failure         *failureJSON `json:"failure,omitempty"`
	DueAt           *time.Time   `json:"due_at,omitempty"`
	Branch          string       `json:"branch,omitempty"`
	Branches        int          `json:"branches,omitempty"`
	Position        int          `json:"position"`
}

func toFailureJSON(f *wiggle.Failure) *failureJSON {
	if f == nil {
		return nil
	}
	return &failureJSON{f.Type, f.Message, f.Stack, f.Node, f.Attempt, f.Worker}
}

// toInstanceJSON has the context only where the instance was read alone: lists do not carry it.
func toInstanceJSON(i *wiggle.Instance) instanceJSON {
	out := instanceJSON{
		ID: i.ID, Namespace: i.Namespace, Workflow: i.Workflow, Version: i.Version, State: i.State.String(), Priority: i.Priority,
		CreatedAt: shell.TimeJSON(i.CreatedAt), EndedAt: shell.TimeJSON(i.EndedAt), Context: payloadJSON(i.Context()),
		Failure: toFailureJSON(i.Failure), ActiveTokens: i.ActiveTokens,
	}
	for _, t := range i.Tokens {
		out.Tokens = append(out.Tokens, tokenJSON{
			t.ID, t.ParentID, t.Node, t.State, t.Attempt, t.Branch, shell.TimeJSON(t.DueAt), t.Worker,
			shell.TimeJSON(t.LeaseExpiresAt), toFailureJSON(t.LastFailure), t.PendingBranches,
		})
	}
	return out
}

func toHistoryJSON(entries []wiggle.HistoryEntry) []historyJSON {
	out := make([]historyJSON, 0, len(entries))
	for _, e := range entries {
		out = append(out, historyJSON{
			Kind: e.Kind, RecordedAt: shell.TimeJSON(e.RecordedAt), TokenID: e.TokenID, Node: e.Node, Step: e.Step, Attempt: e.Attempt,
			Worker: e.Worker, QueuedAt: shell.TimeJSON(e.QueuedAt), DispatchedAt: shell.TimeJSON(e.DispatchedAt),
			StartedAt: shell.TimeJSON(e.StartedAt), FinishedAt: shell.TimeJSON(e.FinishedAt), Output: payloadJSON(e.Output),
			OutputTruncated: e.OutputTruncated, Answer: e.Answer, Failure: toFailureJSON(e.Failure), DueAt: shell.TimeJSON(e.DueAt),
			Branch: e.Branch, Branches: e.Branches, Position: e.Position,
		})
	}
	return out
}
