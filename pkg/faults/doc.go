// Package faults holds the one type of error that a client may see (ENG-25).
//
// An [Error] is a wigglev1.Fault, which goes to the client as it is, and a cause, which never does. The text of an
// Error is the fault's message: what is wrong, of what, and what to do about it. It names no host, SQL or table; the
// cause does, and only [Error.Detail] and [Error.LogValue] show it. An error that is not an Error becomes INTERNAL with
// a reference id under which the log has the rest ([FromError]).
//
// Errors are compared by kind with the sentinels of this package:
//
//	if errors.Is(err, faults.ErrLeaseLost) { ... }
//
// The package knows no transport: package rpc maps faults to Connect and gRPC errors and back, in one interceptor each.
package faults
