package faults

import wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"

// Sentinels for errors.Is, one for each kind of fault.
var (
	// ErrShardUnknown matches faults made by [ShardUnknown].
	ErrShardUnknown error = &sentinel{kind: kindShardUnknown}
	// ErrShardUnavailable matches faults made by [ShardUnavailable].
	ErrShardUnavailable error = &sentinel{kind: kindShardUnavailable}
	// ErrLeaseLost matches faults made by [LeaseLost].
	ErrLeaseLost error = &sentinel{kind: kindLeaseLost}
	// ErrOutcomeUnknown matches faults made by [OutcomeUnknown].
	ErrOutcomeUnknown error = &sentinel{kind: kindOutcomeUnknown}
	// ErrShardsMissing matches faults made by [ShardsMissing].
	ErrShardsMissing error = &sentinel{kind: kindShardsMissing}
	// ErrLimitExceeded matches faults made by [LimitExceeded].
	ErrLimitExceeded error = &sentinel{kind: kindLimitExceeded}
	// ErrInvalid matches faults made by [Invalid].
	ErrInvalid error = &sentinel{kind: kindInvalid}
	// ErrDefinitionConflict matches faults made by [DefinitionConflict].
	ErrDefinitionConflict error = &sentinel{kind: kindDefinitionConflict}
	// ErrWrongState matches faults made by [WrongState].
	ErrWrongState error = &sentinel{kind: kindWrongState}
	// ErrPermissionMissing matches faults made by [PermissionDenied].
	ErrPermissionMissing error = &sentinel{kind: kindPermissionMissing}
)

// Sentinels for errors.Is that match by code, whatever the kind.
var (
	// ErrCanceled matches every fault with the code CANCELED.
	ErrCanceled error = &sentinel{code: CodeCanceled}
	// ErrInvalidArgument matches every fault with the code INVALID_ARGUMENT, those made by [Invalid] too.
	ErrInvalidArgument error = &sentinel{code: CodeInvalidArgument}
	// ErrDeadlineExceeded matches every fault with the code DEADLINE_EXCEEDED.
	ErrDeadlineExceeded error = &sentinel{code: CodeDeadlineExceeded}
	// ErrNotFound matches every fault with the code NOT_FOUND.
	ErrNotFound error = &sentinel{code: CodeNotFound}
	// ErrAlreadyExists matches every fault with the code ALREADY_EXISTS.
	ErrAlreadyExists error = &sentinel{code: CodeAlreadyExists}
	// ErrFailedPrecondition matches every fault with the code FAILED_PRECONDITION.
	ErrFailedPrecondition error = &sentinel{code: CodeFailedPrecondition}
	// ErrResourceExhausted matches every fault with the code RESOURCE_EXHAUSTED, those made by [LimitExceeded] too.
	ErrResourceExhausted error = &sentinel{code: CodeResourceExhausted}
	// ErrUnavailable matches every fault with the code UNAVAILABLE: it may be repeated after a pause.
	ErrUnavailable error = &sentinel{code: CodeUnavailable}
	// ErrUnimplemented matches every fault with the code UNIMPLEMENTED.
	ErrUnimplemented error = &sentinel{code: CodeUnimplemented}
	// ErrPermissionDenied matches every fault with the code PERMISSION_DENIED, those made by [PermissionDenied] too.
	ErrPermissionDenied error = &sentinel{code: CodePermissionDenied}
	// ErrUnauthenticated matches every fault with the code UNAUTHENTICATED.
	ErrUnauthenticated error = &sentinel{code: CodeUnauthenticated}
	// ErrInternal matches every fault with the code INTERNAL.
	ErrInternal error = &sentinel{code: CodeInternal}
)

// The kinds of fault.proto, by the names of their fields.
const (
	kindShardUnknown       = "shard_unknown"
	kindShardUnavailable   = "shard_unavailable"
	kindLeaseLost          = "lease_lost"
	kindOutcomeUnknown     = "outcome_unknown"
	kindShardsMissing      = "shards_missing"
	kindLimitExceeded      = "limit_exceeded"
	kindInvalid            = "invalid"
	kindDefinitionConflict = "definition_conflict"
	kindNotFound           = "not_found"
	kindWrongState         = "wrong_state"
	kindPermissionMissing  = "permission_missing"
)

// sentinel stands for all faults of a kind, or of a code.
type sentinel struct {
	kind string
	code Code
}

func (s *sentinel) Error() string {
	if s.kind != "" {
		return s.kind
	}
	return s.code.String()
}

func (s *sentinel) matches(fault *wigglev1.Fault) bool {
	if s.kind != "" {
		return kindName(fault) == s.kind
	}
	return Code(fault.GetCode()) == s.code
}

// kindName returns the name of the field of the oneof that is set.
func kindName(fault *wigglev1.Fault) string {
	switch fault.GetKind().(type) {
	case *wigglev1.Fault_ShardUnknown:
		return kindShardUnknown
	case *wigglev1.Fault_ShardUnavailable:
		return kindShardUnavailable
	case *wigglev1.Fault_LeaseLost:
		return kindLeaseLost
	case *wigglev1.Fault_OutcomeUnknown:
		return kindOutcomeUnknown
	case *wigglev1.Fault_ShardsMissing:
		return kindShardsMissing
	case *wigglev1.Fault_LimitExceeded:
		return kindLimitExceeded
	case *wigglev1.Fault_Invalid:
		return kindInvalid
	case *wigglev1.Fault_DefinitionConflict:
		return kindDefinitionConflict
	case *wigglev1.Fault_NotFound:
		return kindNotFound
	case *wigglev1.Fault_WrongState:
		return kindWrongState
	case *wigglev1.Fault_PermissionMissing:
		return kindPermissionMissing
	}
	return ""
}
