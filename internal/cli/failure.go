package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wiggle-run/wiggle/internal/cli/shell"
	"github.com/wiggle-run/wiggle/pkg/definitionfile"
	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/process"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

const exitCodesText = `Every command ends with one of these codes:

    0  done
    1  failure: what standard error says went wrong, or a check found problems
    2  usage: the command line is wrong, and nothing was done
    3  not found: no such instance, workflow or version
    4  unavailable: the server, or a shard that was needed, is out of reach; trying again may help
    5  the instance that was waited for ended otherwise than COMPLETED, or the demo did not complete
    6  unauthenticated: no session and no API key that the server accepts, or a password that is wrong
    7  permission denied: the caller may not do that; the message names the permission
  130  interrupted by Ctrl-C

With -o json an error is one document on standard error:

  {"error": {"code": "not_found", "kind": "not_found", "message": "...", "problems": [...]}}

code is that of Connect and gRPC, or "usage"; kind says more where there is more to say.
`

func newExitCodes() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "The exit codes of every command", Long: exitCodesText}
}

// report is an error as -o json has it.
type report struct {
	Code        string        `json:"code"`
	Kind        string        `json:"kind,omitempty"`
	Message     string        `json:"message"`
	Hint        string        `json:"hint,omitempty"`
	Problems    []problemJSON `json:"problems,omitempty"`
	Differences []string      `json:"differences,omitempty"`
	Shards      []int         `json:"shards,omitempty"`
	Permission  string        `json:"permission,omitempty"`
	ReferenceID string        `json:"reference_id,omitempty"`
	RetryAfter  float64       `json:"retry_after_seconds,omitempty"`
	exit        int
}

type problemJSON struct {
	Where   string `json:"where,omitempty"`
	Message string `json:"message"`
}

// conclude tells what went wrong and returns the exit code.
func (p *Program) conclude(ctx context.Context, err error) int {
	if err == nil {
		return shell.ExitOK
	}
	var f *shell.Failure
	if errors.As(err, &f) && f.Told {
		return f.Exit
	}
	r := p.describe(ctx, err)
	if p.json() {
		_ = json.NewEncoder(p.Err).Encode(map[string]any{"error": r})
		return r.exit
	}
	r.write(p.Err)
	return r.exit
}

func (r report) write(w io.Writer) {
	text := "wiggle: " + r.Message
	if r.ReferenceID != "" {
		text += " (reference " + r.ReferenceID + ")"
	}
	for _, problem := range r.Problems {
		line := problem.Message
		if problem.Where != "" {
			line = problem.Where + ": " + line
		}
		text += "\n  " + line
	}
	for _, d := range r.Differences {
		text += "\n  " + d
	}
	if r.Hint != "" {
		text += "\n" + r.Hint
	}
	_, _ = fmt.Fprintln(w, text)
}

// describe says what an error is.
func (p *Program) describe(ctx context.Context, err error) report {
	if signal, ok := errors.AsType[*lifecycle.SignalError](context.Cause(ctx)); ok {
		return report{Code: "canceled", Kind: "interrupted", Message: signal.Error(), exit: shell.ExitInterrupted}
	}
	if e, ok := errors.AsType[*wiggle.Error](err); ok {
		r := p.describeServer(e)
		if f, ok := errors.AsType[*shell.Failure](err); ok && f.Hint != "" {
			r.Hint = f.Hint
		}
		return r
	}
	r := report{Code: "failed", Message: strings.TrimPrefix(err.Error(), "wiggle: "), exit: shell.ExitFailure}
	if f, ok := errors.AsType[*shell.Failure](err); ok {
		r.Kind, r.Hint, r.exit = f.Kind, f.Hint, f.Exit
		if f.Exit == shell.ExitUsage {
			r.Code, r.Kind = "usage", ""
		}
	}
	if strings.HasPrefix(r.Message, "unknown command") {
		r.Code, r.exit = "usage", shell.ExitUsage
		r.Message, r.Hint = strings.TrimSpace(strings.ReplaceAll(r.Message, "\n\n", "\n")), "see wiggle --help"
	}
	if e, ok := errors.AsType[*wiggle.DefinitionError](err); ok {
		r.Code, r.Kind, r.Message = "invalid_argument", "invalid", fmt.Sprintf("workflow %q is not valid", e.Workflow)
		r.Problems = problemsOf(e.Problems)
	}
	if e, ok := errors.AsType[*definitionfile.Error](err); ok {
		r.Code, r.Kind, r.Message = "invalid_argument", "invalid", e.File+" is not a definition"
		for _, fault := range e.Faults {
			where := ""
			if fault.Line > 0 {
				where = fmt.Sprintf("%s:%d:%d", e.File, fault.Line, fault.Column)
			}
			r.Problems = append(r.Problems, problemJSON{where, fault.Message})
		}
	}
	if e, ok := errors.AsType[*process.ConfigError](err); ok {
		r.Code, r.Kind, r.Message = "invalid_argument", "configuration", "the configuration is not right"
		r.Hint = "wiggle settings lists what there is"
		for _, problem := range e.Problems {
			r.Problems = append(r.Problems, problemJSON{problem.Where, problem.Message})
		}
	}
	return r
}

// describeServer says what a server answered.
func (p *Program) describeServer(e *wiggle.Error) report {
	r := report{
		Code: e.Code.String(), Kind: faultKind(e.Fault()), Message: e.Message, ReferenceID: e.ReferenceID,
		Differences: e.Differences, Shards: e.Shards, RetryAfter: e.RetryAfter.Seconds(), Permission: e.Permission,
		Problems: problemsOf(e.Problems), exit: shell.ExitFailure,
	}
	if e.Op != "" {
		r.Message = e.Op + ": " + r.Message
	}
	switch {
	case errors.Is(e, wiggle.ErrNotFound):
		r.exit = shell.ExitNotFound
	case errors.Is(e, wiggle.ErrUnauthenticated):
		r.exit, r.Hint = shell.ExitUnauthenticated, p.signInHint()
	case errors.Is(e, wiggle.ErrPermissionDenied):
		r.exit, r.Hint = shell.ExitDenied, permissionHint(e)
	case errors.Is(e, wiggle.ErrUnavailable), errors.Is(e, context.DeadlineExceeded):
		r.exit = shell.ExitUnavailable
		if e.Fault() == nil {
			r.Hint = fmt.Sprintf("is a router running at %s? start one with wiggle dev, or name another with --server or %s",
				p.serverURL(), envServer)
		}
	}
	return r
}

func problemsOf(list []wiggle.Problem) []problemJSON {
	var problems []problemJSON
	for _, problem := range list {
		problems = append(problems, problemJSON{problem.Where, problem.Message})
	}
	return problems
}

// faultKind is the name of the detail that a fault carries.
func faultKind(f *wigglev1.Fault) string {
	message := f.ProtoReflect()
	for i := range message.Descriptor().Oneofs().Len() {
		if field := message.WhichOneof(message.Descriptor().Oneofs().Get(i)); field != nil {
			return string(field.Name())
		}
	}
	return ""
}
