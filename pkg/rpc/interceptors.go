package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/otelconnect"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
)

// handlerStack is everything that a call goes through before it gets to a handler, the outermost first.
func handlerStack(cfg ServerConfig) ([]connect.Interceptor, error) {
	var stack []connect.Interceptor
	traced, err := cfg.Telemetry.interceptor()
	if err != nil {
		return nil, err
	}
	if traced != nil {
		stack = append(stack, traced) // sees the code that the client sees
	}
	stack = append(stack,
		accessLog{logger: cfg.Logger}, // sees the cause of what the client sees
		mapErrors{},                   // the one place where errors get their codes
		recoverPanics{},
		capDuration{limit: cfg.MaxCallDuration},
		handlerHeaders{release: cfg.Release},
	)
	stack = append(stack, cfg.Interceptors...) // who calls, and whether they may
	stack = append(stack, checkMessages{payloads: cfg.Payloads, validator: cfg.Validator})
	return stack, nil
}

// clientStack is everything that a call goes through on its way out, the outermost first.
func clientStack(cfg ClientConfig) ([]connect.Interceptor, error) {
	stack := []connect.Interceptor{unmapErrors{}}
	traced, err := cfg.Telemetry.interceptor()
	if err != nil {
		return nil, err
	}
	if traced != nil {
		stack = append(stack, traced)
	}
	return append(stack, clientHeaders{release: cfg.Release, key: cfg.ServiceKey, peerRelease: cfg.PeerRelease}), nil
}

// interceptor traces and measures calls; nil if telemetry is off.
func (t Telemetry) interceptor() (connect.Interceptor, error) {
	if t.TracerProvider == nil && t.MeterProvider == nil {
		return nil, nil //nolint:nilnil // no interceptor is what off means
	}
	// Callers' spans are parents, not links: one trace from the start of an instance on (OPS-10). Peer attributes are
	// left out, because a series per client port would fill any metrics store.
	options := []otelconnect.Option{
		otelconnect.WithTrustRemote(), otelconnect.WithoutServerPeerAttributes(), otelconnect.WithoutTraceEvents(),
		otelconnect.WithPropagator(t.propagator()), otelconnect.WithoutTracing(), otelconnect.WithoutMetrics(),
	}
	if t.TracerProvider != nil {
		options = append(options, otelconnect.WithTracerProvider(t.TracerProvider))
	}
	if t.MeterProvider != nil {
		options = append(options, otelconnect.WithMeterProvider(t.MeterProvider))
	}
	traced, err := otelconnect.NewInterceptor(options...)
	if err != nil {
		return nil, fmt.Errorf("trace calls: %w", err)
	}
	return traced, nil
}

// handlerSide is an interceptor that does nothing to clients.
type handlerSide struct{}

func (handlerSide) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// accessLog writes a line for each call: at debug level, and for internal errors at warning level, with the cause.
type accessLog struct {
	handlerSide

	logger *slog.Logger
}

func (l accessLog) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		start := time.Now()
		res, err := next(ctx, req)
		l.log(ctx, req.Spec(), start, err)
		return res, err
	}
}

func (l accessLog) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		start := time.Now()
		err := next(ctx, conn)
		l.log(ctx, conn.Spec(), start, err)
		return err
	}
}

func (l accessLog) log(ctx context.Context, spec connect.Spec, start time.Time, err error) {
	fault, _ := errors.AsType[*faults.Error](err)
	level := slog.LevelDebug
	if fault.Code() == faults.CodeInternal && !connect.IsWireError(fault.Unwrap()) {
		level = slog.LevelWarn // unless the service that was called has logged it under the same reference
	}
	if !l.logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("procedure", spec.Procedure), slog.Duration("duration", time.Since(start)),
		slog.String("code", fault.Code().String()),
	}
	if fault != nil {
		attrs = append(attrs, slog.Any("fault", fault))
	}
	l.logger.LogAttrs(ctx, level, "call", attrs...)
}

// mapErrors turns the errors of handlers into Connect errors. Nothing else does.
type mapErrors struct{ handlerSide }

func (mapErrors) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		if err != nil {
			return nil, ToConnect(err)
		}
		return res, nil
	}
}

func (mapErrors) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := next(ctx, conn); err != nil {
			return ToConnect(err)
		}
		return nil
	}
}

// unmapErrors turns what clients get into faults.
type unmapErrors struct{}

func (unmapErrors) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		if err != nil {
			return nil, FromConnect(err)
		}
		return res, nil
	}
}

func (unmapErrors) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func (unmapErrors) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return unmappedConn{next(ctx, spec)}
	}
}

type unmappedConn struct{ connect.StreamingClientConn }

func (c unmappedConn) Send(message any) error {
	return unmapStream(c.StreamingClientConn.Send(message))
}

func (c unmappedConn) Receive(message any) error {
	return unmapStream(c.StreamingClientConn.Receive(message))
}

// unmapStream leaves alone what holds io.EOF, by which streams tell that they are over.
func unmapStream(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return FromConnect(err)
}

// recoverPanics turns a panic of a handler into an internal error with its stack for the log.
type recoverPanics struct{ handlerSide }

func (recoverPanics) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (_ connect.AnyResponse, err error) {
		defer recovered(&err)
		return next(ctx, req)
	}
}

func (recoverPanics) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		defer recovered(&err)
		return next(ctx, conn)
	}
}

func recovered(err *error) {
	value := recover()
	if value == nil {
		return
	}
	if value == http.ErrAbortHandler { //nolint:errorlint,err113 // net/http compares so, too
		panic(value) // net/http ends the connection
	}
	*err = faults.Internal(fmt.Errorf("panic: %v\n%s", value, debug.Stack()))
}

// capDuration bounds the time of unary calls whose callers set no time, or a longer one. Streams have no end by nature.
type capDuration struct {
	handlerSide

	limit time.Duration
}

func (d capDuration) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, d.limit)
		defer cancel()
		return next(ctx, req)
	}
}

func (d capDuration) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// checkMessages normalises payloads and validates what comes in.
type checkMessages struct {
	handlerSide

	payloads  *Payloads
	validator *Validator // nil behind the router, which has validated
}

func (c checkMessages) check(message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return nil
	}
	if err := c.payloads.Normalize(m); err != nil {
		return err
	}
	if c.validator == nil {
		return nil
	}
	return c.validator.Validate(m)
}

func (c checkMessages) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := c.check(req.Any()); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

func (c checkMessages) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return next(ctx, checkedConn{conn, c})
	}
}

type checkedConn struct {
	connect.StreamingHandlerConn

	checks checkMessages
}

func (c checkedConn) Receive(message any) error {
	if err := c.StreamingHandlerConn.Receive(message); err != nil {
		return err
	}
	return c.checks.check(message)
}
