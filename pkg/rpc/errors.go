package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// retryTransport is the pause before a call is tried again that the network, or the end of a process, has cut.
const retryTransport = time.Second

// ToConnect returns the Connect error for err, with the fault as its detail. Its chain holds the *faults.Error. It is
// for handlers outside of a [Server]'s stack, such as middleware; the stack does it for all others. It returns nil for
// nil.
func ToConnect(err error) *connect.Error {
	if err == nil {
		return nil
	}
	fault := handlerFault(err)
	out := connect.NewError(connect.Code(fault.Code()), fault) //nolint:gosec // codes are 1 to 16
	if detail, derr := connect.NewErrorDetail(fault.ToProto()); derr == nil {
		out.AddDetail(detail)
	}
	if after, ok := fault.RetryAfter(); ok {
		out.Meta().Set("Retry-After", strconv.Itoa(int(math.Ceil(after.Seconds()))))
	}
	return out
}

// FromConnect returns the fault for an error of a Connect client: the fault that the server sent, or one that tells
// what the network did to the call and that names no host. It returns nil for nil.
func FromConnect(err error) *faults.Error {
	if err == nil {
		return nil
	}
	fault, ce := knownFault(err)
	if fault != nil {
		return fault
	}
	if connect.IsWireError(ce) {
		return bare(ce.Code(), ce.Message()).WithCause(err)
	}
	switch ce.Code() {
	case connect.CodeCanceled:
		// That is what the Connect library also calls a connection that was dropped, as it is on a server's side.
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			return faults.Unavailable(retryTransport, "the service does not answer; try again").WithCause(err)
		}
		return faults.FromError(fmt.Errorf("%w: %w", context.Canceled, err))
	case connect.CodeDeadlineExceeded:
		return faults.FromError(fmt.Errorf("%w: %w", context.DeadlineExceeded, err))
	case connect.CodeUnavailable, connect.CodeUnknown:
		return faults.Unavailable(retryTransport, "the service does not answer; try again").WithCause(err)
	case connect.CodeResourceExhausted:
		return bare(ce.Code(), ce.Message()).WithCause(err)
	}
	return faults.Internal(err)
}

// knownFault returns the fault that an error is or carries, or else the Connect error that it is.
func knownFault(err error) (*faults.Error, *connect.Error) {
	if _, ok := errors.AsType[*faults.Error](err); ok {
		return faults.FromError(err), nil
	}
	ce, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return faults.FromError(err), nil
	}
	if fault := faultDetail(ce); fault != nil {
		return faults.FromProto(fault).WithCause(err), nil
	}
	return nil, ce
}

// handlerFault returns the fault for an error of a handler, or of the Connect library on a handler's behalf.
func handlerFault(err error) *faults.Error {
	fault, ce := knownFault(err)
	if fault != nil {
		return fault
	}
	switch ce.Code() {
	case connect.CodeUnavailable:
		return faults.Unavailable(retryTransport, "the service does not answer; try again").WithCause(err)
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss:
		return faults.Internal(err)
	}
	return bare(ce.Code(), ce.Message()).WithCause(err)
}

// faultDetail returns the fault among the details of an error.
func faultDetail(ce *connect.Error) *wigglev1.Fault {
	for _, detail := range ce.Details() {
		value, err := detail.Value()
		if err != nil {
			continue
		}
		if fault, ok := value.(*wigglev1.Fault); ok {
			return fault
		}
	}
	return nil
}

// bare returns a fault that is no more than a code and a message.
func bare(code connect.Code, message string) *faults.Error {
	return faults.FromProto(&wigglev1.Fault{Code: int32(code), Message: message}) //nolint:gosec // codes are 1 to 16
}

// PeerGone reports whether an error of a stream's Receive or Send means that the caller or the connection is gone. Else
// it is about a message that is not valid, and is for the caller to see.
func PeerGone(err error) bool {
	if _, ok := errors.AsType[*faults.Error](err); ok {
		return false
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeResourceExhausted, connect.CodeUnimplemented:
		return false
	default:
		return true
	}
}

// StreamFault is why a stream ends that could not be read or written, given the error of doing so. Where the peer is gone
// nobody is told.
func StreamFault(ctx context.Context, err error) error {
	if PeerGone(err) {
		return errors.Join(context.Canceled, ctx.Err())
	}
	return err
}
