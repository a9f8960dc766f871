package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
)

const (
	settingPprofAddr = "WIGGLE_PPROF_ADDR"

	// Where profiles are offered, one in mutexFraction contentions is recorded, and on average one wait per blockRate spent
	// waiting: what that costs cannot be measured.
	mutexFraction = 10
	blockRate     = 100 * time.Microsecond
)

// ServeProfiles offers Go's profiles of this process (CPU, heap, mutex, block, ...) below /debug/pprof/ until ctx is done.
// They show what a program does and sometimes with what: addr must be on the loopback interface, or it is refused.
func ServeProfiles(ctx context.Context, addr string) error {
	l, err := listenForProfiles(ctx, addr)
	if err != nil {
		return err
	}
	return serveProfiles(ctx, l)
}

func listenForProfiles(ctx context.Context, addr string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("%s: %q is not on the loopback interface; use 127.0.0.1 and a port", settingPprofAddr, addr)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", settingPprofAddr, err)
	}
	return l, nil
}

func serveProfiles(ctx context.Context, l net.Listener) error {
	runtime.SetMutexProfileFraction(mutexFraction)
	runtime.SetBlockProfileRate(int(blockRate))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTime}
	// A profile may take minutes: nobody waits for it.
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// profiles makes the component that offers profiles, if they are asked for.
func (p *Process) profiles(ctx context.Context) ([]lifecycle.Component, error) {
	if p.PprofAddr == "" {
		return nil, nil
	}
	l, err := listenForProfiles(ctx, p.PprofAddr)
	if err != nil {
		return nil, err
	}
	p.listeners = append(p.listeners, l)
	return []lifecycle.Component{{Name: "profiles", Run: func(ctx context.Context) error { return serveProfiles(ctx, l) }}}, nil
}
