package faults

import "fmt"

// Code is the class of a fault, numbered as gRPC and Connect number theirs.
type Code int32

// The codes of gRPC. CodeUnavailable is always safe to repeat here, because every operation is (ENG-23).
const (
	CodeOK                 Code = 0
	CodeCanceled           Code = 1
	CodeUnknown            Code = 2
	CodeInvalidArgument    Code = 3
	CodeDeadlineExceeded   Code = 4
	CodeNotFound           Code = 5
	CodeAlreadyExists      Code = 6
	CodePermissionDenied   Code = 7
	CodeResourceExhausted  Code = 8
	CodeFailedPrecondition Code = 9
	CodeAborted            Code = 10
	CodeOutOfRange         Code = 11
	CodeUnimplemented      Code = 12
	CodeInternal           Code = 13
	CodeUnavailable        Code = 14
	CodeDataLoss           Code = 15
	CodeUnauthenticated    Code = 16
)

// String returns the code's name in upper case, as gRPC writes it.
func (c Code) String() string {
	names := [...]string{
		"OK", "CANCELED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	}
	if c < 0 || int(c) >= len(names) {
		return fmt.Sprintf("CODE_%d", int32(c))
	}
	return names[c]
}

// Valid reports whether c is a code of an error that gRPC knows.
func (c Code) Valid() bool { return c > CodeOK && c <= CodeUnauthenticated }
