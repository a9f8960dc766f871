package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/telemetry"
	"github.com/wiggle-run/wiggle/pkg/topology"
)

// Equipment is what a process gives its services.
type Equipment struct {
	// Release is what the binary tells others that it is.
	Release string
	// Logger writes the log.
	Logger *slog.Logger
	// Telemetry is where calls are traced and measured.
	Telemetry rpc.Telemetry
	// Metrics answers Prometheus.
	Metrics http.Handler
	// Transport is how the process's services talk to others.
	Transport rpc.Transport
}

// Equip sets up logs, traces and metrics; the release is filled in. stop exports what is left, within its context.
func Equip(ctx context.Context, cfg telemetry.Config) (_ Equipment, stop func(context.Context) error, err error) {
	cfg.Version = Release()
	tel, stop, err := telemetry.Setup(ctx, cfg)
	if err != nil {
		return Equipment{}, nil, fmt.Errorf("set up telemetry: %w", err)
	}
	return Equipment{
		Release: cfg.Version, Logger: tel.Logger, Metrics: tel.Metrics,
		Telemetry: rpc.Telemetry{TracerProvider: tel.TracerProvider, MeterProvider: tel.MeterProvider, Propagator: tel.Propagator},
	}, stop, nil
}

// linkedRelease is set by the linker where a build knows what it builds and the binary does not: -X of scripts/image-binaries.
var linkedRelease string

// Release is what this binary tells others that it is: what it was linked with, else the version of its main module.
func Release() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return releaseOf(linkedRelease, info.Main.Version)
}

func releaseOf(linked, module string) string {
	switch {
	case linked != "":
		return linked
	case module != "":
		return module
	}
	return "(devel)"
}

// Wiring is the services of a process, made and not yet running.
type Wiring struct {
	// Services start in this order and stop in reverse.
	Services []lifecycle.Component
	// Grace is what each may take to finish what is in flight. 0: 20 s.
	Grace time.Duration
	// Mount puts a handler on the port that the process serves: that of metrics, if they have no port of their own.
	Mount func(pattern string, handler http.Handler)
	// Close, if set, is called at the end: it gives back what the services hold even if they never came to run.
	Close func()
	// SetTopology takes the topology as it is after a SIGHUP; if it refuses, the old one is kept (SHD-16). Nil: the
	// services keep that of the start, and a SIGHUP only says so.
	SetTopology func(t *topology.Topology) error
}

// flushTime bounds how long a process waits at its end for a collector that does not answer.
const flushTime = 5 * time.Second

// Run sets up telemetry, has wire make the services, and runs them until ctx is done. It may be called once.
func (p *Process) Run(ctx context.Context, wire func(ctx context.Context, e Equipment) (Wiring, error)) error {
	tuneMemory()
	equipment, stop, err := Equip(ctx, telemetry.Config{Service: p.Name, LogFormat: p.LogFormat, LogLevel: p.LogLevel})
	if err != nil {
		return err
	}
	equipment.Logger.InfoContext(ctx, "process starts",
		slog.String("service", p.Name), slog.String("release", equipment.Release), slog.Any("settings", p.Values))
	if equipment.Transport, err = p.transport.open(p.port, equipment); err == nil {
		err = p.run(ctx, equipment, wire)
	}
	for _, l := range p.listeners {
		_ = l.Close() // those of services that ran are closed already
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	return errors.Join(err, stop(ctx))
}

func (p *Process) run(ctx context.Context, e Equipment, wire func(context.Context, Equipment) (Wiring, error)) error {
	w, err := wire(ctx, e)
	if err != nil {
		return err
	}
	if w.Close != nil {
		defer w.Close()
	}
	components, err := p.metrics(ctx, e.Metrics, w.Mount)
	if err != nil {
		return err
	}
	profiles, err := p.profiles(ctx)
	if err != nil {
		return err
	}
	components = append(components, profiles...)
	components = append(components, lifecycle.Component{Name: "topology", Run: p.reloadOnHangup(e.Logger, w.SetTopology)})
	components = append(components, w.Services...)
	return lifecycle.Run(ctx, time.Duration(len(w.Services))*stopTime(w.Grace), components...)
}

// stopTime is what a service that has a grace of its own may take in all.
func stopTime(grace time.Duration) time.Duration {
	if grace == 0 {
		grace = lifecycle.DefaultGrace
	}
	return grace + 2*time.Second
}

// Listen opens the port that a setting names, while Run wires; so one that is taken is told before anything else is done.
func (p *Process) Listen(ctx context.Context, setting, addr string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%s is taken by another process: stop it, or choose another address with %s", addr, setting)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	p.listeners = append(p.listeners, l)
	return l, nil
}

const (
	metricsPattern = "GET /metrics"
	// headerTime is short: only Prometheus calls, and from nearby.
	headerTime = 5 * time.Second
)

// metrics puts metrics on the service's port, or makes the component that serves them on one of their own.
func (p *Process) metrics(
	ctx context.Context, metrics http.Handler, mount func(pattern string, h http.Handler),
) ([]lifecycle.Component, error) {
	if p.MetricsAddr == "" {
		mount(metricsPattern, metrics)
		return nil, nil
	}
	l, err := p.Listen(ctx, settingMetricsAddr, p.MetricsAddr)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle(metricsPattern, metrics)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTime}
	return []lifecycle.Component{{Name: "metrics", Run: func(ctx context.Context) error {
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()
		select {
		case err := <-served:
			return err
		case <-ctx.Done():
		}
		err := server.Shutdown(lifecycle.DrainContext(ctx))
		if served := <-served; !errors.Is(served, http.ErrServerClosed) {
			err = errors.Join(err, served)
		}
		return err
	}}}, nil
}

// reloadOnHangup reads the topology anew at each SIGHUP. One that is not right is told, and the old one kept (SHD-16).
func (p *Process) reloadOnHangup(logger *slog.Logger, apply func(*topology.Topology) error) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-hangups:
			}
			if apply == nil {
				logger.WarnContext(ctx, "this process reads the topology when it starts; restart it to change it")
				continue
			}
			t, err := p.readTopology()
			if err == nil {
				err = apply(t)
			}
			if err != nil {
				logger.ErrorContext(ctx, "the topology is not right; the old one is kept", slog.Any("error", err))
				continue
			}
			logger.InfoContext(ctx, "the topology was read anew")
		}
	}
}

// Main is what a command does that is one service: it runs the service's Main with the environment until SIGINT or
// SIGTERM, says on standard error why it failed, and returns the exit code. With the arguments healthcheck URL it only asks a process
// that runs, as [Healthcheck] does.
func Main(name string, service func(ctx context.Context, environ []string) error) (code int) {
	ctx, stop := lifecycle.WithSignals(context.Background())
	defer stop()
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 0:
		err = service(ctx, os.Environ())
	case args[0] == "healthcheck":
		err = healthcheck(ctx, args[1:])
	default:
		err = fmt.Errorf("does not know %q: it is configured by the environment, and takes nothing but healthcheck URL", args[0])
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	return 0
}
