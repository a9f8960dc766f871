// Package rpc is the one way in which services offer and call each other, over the network or within a process.
//
// A [Server] serves any number of generated Connect handlers on one port, speaking Connect, gRPC and gRPC-Web over
// HTTP/1.1 and HTTP/2 with or without TLS, beside gRPC health, reflection, /healthz and /readyz. What every call goes
// through stands in one function, handlerStack: tracing, the access log, the mapping of errors, recovery of panics, the
// cap on a call's time, headers, payloads, validation.
//
// An [http.Client] made by [NewHTTPClient] with the options of [NewClientOptions] is the other side. Over a
// [MemoryNetwork] the same servers and clients talk within one process (ARC-4): only the connection differs.
//
// # Errors
//
// Handlers return any error; the stack turns it into a fault (package faults) once, and sends it as a Connect or gRPC
// error with the wigglev1.Fault as its detail. Clients made here return *faults.Error again, also for what the network
// did to the call, so that errors.Is(err, faults.ErrLeaseLost) is true on both sides.
//
// # Payloads
//
// Over Connect with JSON a wigglev1.Payload may be structured JSON in both directions, with every number as it was
// written (WF-9). [JSONCodec] and [Payloads] say how.
package rpc
