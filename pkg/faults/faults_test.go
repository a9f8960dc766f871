package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func TestEveryKind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err       *faults.Error
		kind      string
		code      faults.Code
		sentinels []error
		retry     bool
		says      []string
	}{
		{
			faults.ShardUnknown(7), "shard_unknown", faults.CodeUnavailable,
			[]error{faults.ErrShardUnknown, faults.ErrUnavailable},
			true,
			[]string{"shard 7", "try again"},
		},
		{
			faults.ShardUnavailable(7, 2*time.Second), "shard_unavailable", faults.CodeUnavailable,
			[]error{faults.ErrShardUnavailable, faults.ErrUnavailable},
			true,
			[]string{"shard 7", "2s"},
		},
		{
			faults.LeaseLost("t1"), "lease_lost", faults.CodeAborted,
			[]error{faults.ErrLeaseLost},
			false,
			[]string{`"t1"`, "stop working"},
		},
		{
			faults.OutcomeUnknown(7), "outcome_unknown", faults.CodeUnavailable,
			[]error{faults.ErrOutcomeUnknown, faults.ErrUnavailable},
			true,
			[]string{"shard 7", "repeat"},
		},
		{
			faults.ShardsMissing(1, 5), "shards_missing", faults.CodeUnavailable,
			[]error{faults.ErrShardsMissing, faults.ErrUnavailable},
			true,
			[]string{"1, 5", "partial"},
		},
		{
			faults.LimitExceeded("payload", "WIGGLE_LIMIT_PAYLOAD_BYTES", 10, 11), "limit_exceeded",
			faults.CodeResourceExhausted,
			[]error{faults.ErrLimitExceeded, faults.ErrResourceExhausted},
			false,
			[]string{"payload", "10", "11", "WIGGLE_LIMIT_PAYLOAD_BYTES"},
		},
		{
			faults.Invalid(faults.Problem("node a", "has no %s", "next"), faults.Problem("", "b"), faults.Problem("c", "d"),
				faults.Problem("e", "f")),
			"invalid", faults.CodeInvalidArgument,
			[]error{faults.ErrInvalid, faults.ErrInvalidArgument},
			false,
			[]string{"node a: has no next; b; c: d; and 1 more"},
		},
		{
			faults.DefinitionConflict("order", 2, "- a", "+ b"), "definition_conflict", faults.CodeFailedPrecondition,
			[]error{faults.ErrDefinitionConflict, faults.ErrFailedPrecondition},
			false,
			[]string{`"order"`, "version 2"},
		},
		{
			faults.NotFound("instance", "i1"), "not_found", faults.CodeNotFound,
			[]error{faults.ErrNotFound},
			false,
			[]string{`instance "i1"`},
		},
		{
			faults.WrongState("i1", "COMPLETED"), "wrong_state", faults.CodeFailedPrecondition,
			[]error{faults.ErrWrongState, faults.ErrFailedPrecondition},
			false,
			[]string{"i1", "COMPLETED"},
		},
		{
			faults.PermissionDenied("instance.start:orders/refund", "key/ci"), "permission_missing", faults.CodePermissionDenied,
			[]error{faults.ErrPermissionMissing, faults.ErrPermissionDenied},
			false,
			[]string{"key/ci", "instance.start:orders/refund"},
		},
		{
			faults.PermissionDenied("a.b:x/y", "key/ci", "a.b:p/q", "a.b:r/s"), "permission_missing", faults.CodePermissionDenied,
			[]error{faults.ErrPermissionMissing, faults.ErrPermissionDenied},
			false,
			[]string{"only a.b:p/q, a.b:r/s"},
		},
		{
			faults.PermissionDeniedOn("instance.read", "key/ci", "instance", "i1"), "permission_missing", faults.CodePermissionDenied,
			[]error{faults.ErrPermissionMissing, faults.ErrPermissionDenied},
			false,
			[]string{`instance "i1"`, "or there is none"},
		},
		{
			faults.Denied("no %s", "way"), "", faults.CodePermissionDenied,
			[]error{faults.ErrPermissionDenied},
			false,
			[]string{"no way"},
		},
		{
			faults.Unauthenticated("set %s", "WIGGLE_API_KEY"), "", faults.CodeUnauthenticated,
			[]error{faults.ErrUnauthenticated},
			false,
			[]string{"WIGGLE_API_KEY"},
		},
		{
			faults.InvalidArgument("bad %d", 1), "", faults.CodeInvalidArgument,
			[]error{faults.ErrInvalidArgument},
			false,
			[]string{"bad 1"},
		},
		{
			faults.AlreadyExists("instance", "i1"), "", faults.CodeAlreadyExists,
			[]error{faults.ErrAlreadyExists},
			false,
			[]string{"i1"},
		},
		{
			faults.Unavailable(time.Second, "no route"), "", faults.CodeUnavailable,
			[]error{faults.ErrUnavailable},
			true,
			[]string{"no route"},
		},
		{
			faults.Overloaded(time.Second, "shard %d has more", 7), "", faults.CodeResourceExhausted,
			[]error{faults.ErrResourceExhausted},
			true,
			[]string{"shard 7 has more"},
		},
		{
			faults.Internal(errors.New("secret")), "", faults.CodeInternal,
			[]error{faults.ErrInternal},
			false,
			[]string{"reference"},
		},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			t.Parallel()
			if c.err.Kind() != c.kind || c.err.Code() != c.code || faults.CodeOf(fmt.Errorf("x: %w", c.err)) != c.code {
				t.Errorf("kind %q, code %v", c.err.Kind(), c.err.Code())
			}
			for _, text := range c.says {
				if !strings.Contains(c.err.Error(), text) {
					t.Errorf("%q does not say %q", c.err, text)
				}
			}
			if _, ok := c.err.RetryAfter(); ok != c.retry {
				t.Errorf("retry: %v", ok)
			}
			over := faults.FromProto(c.err.ToProto())
			if !proto.Equal(over.ToProto(), c.err.ToProto()) {
				t.Errorf("came over as %v", over.ToProto())
			}
			for _, sentinel := range everySentinel() {
				want := slices.Contains(c.sentinels, sentinel)
				for _, err := range []error{c.err, over, fmt.Errorf("reporting: %w", c.err)} {
					if errors.Is(err, sentinel) != want {
						t.Errorf("errors.Is(%v, %v) is %v", err, sentinel, !want)
					}
				}
			}
		})
	}
}

func everySentinel() []error {
	return []error{
		faults.ErrShardUnknown, faults.ErrShardUnavailable, faults.ErrLeaseLost, faults.ErrOutcomeUnknown,
		faults.ErrShardsMissing, faults.ErrLimitExceeded, faults.ErrInvalid, faults.ErrDefinitionConflict,
		faults.ErrWrongState, faults.ErrPermissionMissing, faults.ErrPermissionDenied, faults.ErrUnauthenticated, faults.ErrCanceled, faults.ErrInvalidArgument, faults.ErrDeadlineExceeded,
		faults.ErrNotFound, faults.ErrAlreadyExists, faults.ErrFailedPrecondition, faults.ErrUnavailable,
		faults.ErrResourceExhausted, faults.ErrUnimplemented, faults.ErrInternal,
	}
}

// storageError keeps its detail out of its text, as those of package postgres do.
type storageError struct{}

func (storageError) Error() string    { return "database s0: unavailable" }
func (storageError) Detail() string   { return "dial tcp db7.internal:5432" }
func (storageError) SQLState() string { return "57P01" }

func TestUnknownErrorsAreHidden(t *testing.T) {
	t.Parallel()
	cause := fmt.Errorf("load token: %w", storageError{})
	err := faults.FromError(cause)
	text := err.ToProto().String()
	if strings.Contains(text, "s0") || strings.Contains(text, "token") || err.ReferenceID() == "" ||
		!strings.Contains(err.Error(), err.ReferenceID()) {
		t.Errorf("the client learns %s", text)
	}
	if !errors.Is(err, storageError{}) {
		t.Error("the cause is lost")
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Warn("x", "fault", err)
	for _, want := range []string{"load token", "db7.internal", err.ReferenceID(), "INTERNAL"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q: %s", want, &log)
		}
	}
	if !strings.Contains(err.Detail(), "db7.internal") {
		t.Errorf("detail: %s", err.Detail())
	}
	if faults.CodeOf(cause) != faults.CodeInternal {
		t.Error("code")
	}
}

func TestArgumentsThatLeak(t *testing.T) {
	t.Parallel()
	network := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("db7.internal")}
	for _, leak := range []error{network, fmt.Errorf("x: %w", storageError{})} {
		err := faults.Unavailable(time.Second, "no answer: %v", leak)
		if strings.Contains(err.Error(), "db7") || strings.Contains(err.Error(), "s0") || !errors.Is(err, leak) {
			t.Errorf("got %v", err)
		}
	}
	if err := faults.InvalidArgument("page token: %v", errors.New("too short")); err.Error() != "page token: too short" {
		t.Errorf("got %v", err)
	}
	inner := faults.NotFound("task", "t").WithCause(network)
	if err := faults.InvalidArgument("x: %v", inner); !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("got %v", err)
	}
}

func TestFromError(t *testing.T) {
	t.Parallel()
	if faults.FromError(nil) != nil || faults.FromProto(nil) != nil || faults.CodeOf(nil) != faults.CodeOK {
		t.Error("nil is no fault")
	}
	lost := faults.LeaseLost("t")
	if faults.FromError(lost) != lost {
		t.Error("a fault is itself")
	}
	wrapped := faults.FromError(fmt.Errorf("report 3: %w", lost))
	if !errors.Is(wrapped, faults.ErrLeaseLost) || wrapped.Error() != lost.Error() ||
		!strings.Contains(wrapped.Detail(), "report 3") {
		t.Errorf("got %q, %q", wrapped, wrapped.Detail())
	}
	for cause, code := range map[error]faults.Code{
		context.Canceled: faults.CodeCanceled, context.DeadlineExceeded: faults.CodeDeadlineExceeded,
	} {
		err := faults.FromError(fmt.Errorf("x: %w", cause))
		if err.Code() != code || faults.CodeOf(fmt.Errorf("x: %w", cause)) != code || !errors.Is(err, cause) {
			t.Errorf("got %v", err)
		}
	}
	if got := faults.FromProto(&wigglev1.Fault{Code: 99}); got.Code() != faults.CodeUnknown || got.Error() == "" {
		t.Errorf("got %v", got)
	}
}

func TestNilIsSafe(t *testing.T) {
	t.Parallel()
	var err *faults.Error
	if err.Code() != faults.CodeOK || err.Kind() != "" || err.ToProto() != nil || err.Unwrap() != nil ||
		err.ReferenceID() != "" || err.Error() == "" || err.Detail() == "" {
		t.Error("a nil fault has something")
	}
}

func TestCallersWordsAreBounded(t *testing.T) {
	t.Parallel()
	for _, err := range []*faults.Error{
		faults.NotFound("instance", strings.Repeat("é", 5000)), faults.LeaseLost("\xff" + strings.Repeat("x", 5000)),
		faults.InvalidArgument("%s", strings.Repeat("x", 5000)),
	} {
		wire, merr := proto.Marshal(err.ToProto())
		if merr != nil || len(wire) > 5000 || !utf8.ValidString(err.Error()) {
			t.Errorf("%d bytes, %v", len(wire), merr)
		}
	}
}

func TestCodeNames(t *testing.T) {
	t.Parallel()
	if faults.CodeUnauthenticated.String() != "UNAUTHENTICATED" || faults.CodeOK.String() != "OK" ||
		faults.Code(40).String() != "CODE_40" || faults.CodeOK.Valid() || !faults.CodeAborted.Valid() {
		t.Error("names")
	}
}
