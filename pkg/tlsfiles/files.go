package tlsfiles

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

const (
	// lookPause is how often at most the files are looked at.
	lookPause = time.Second
	// warnTime is how long before its end a certificate is warned of, or a fifth of its life if that is shorter: those that
	// live for a day are renewed by machines.
	warnTime  = 14 * 24 * time.Hour
	warnParts = 5
)

// Config says which files there are. An empty name is a file that is not used.
type Config struct {
	// Certificate and Key are what the process shows: PEM, the certificate with the intermediate ones after it. Either both
	// or none.
	Certificate, Key string
	// ClientCA are the authorities of callers' certificates. A caller may show one, and then it must be right; who has to is
	// for the service to say, which lets health be asked for without. Empty: callers are not asked for one.
	ClientCA string
	// CA are the authorities of the servers that are called. Empty: the system's.
	CA string
	// Now is the clock. Nil: the machine's.
	Now func() time.Time
	// Logger gets what becomes of changes. Nil: nothing is logged.
	Logger *slog.Logger
	// Meter makes the instruments. Nil: nothing is measured.
	Meter metric.Meter
}

// Files are the files of a process. They are safe for concurrent use.
type Files struct {
	cfg      Config
	reloads  metric.Int64Counter
	mu       sync.Mutex
	looked   time.Time
	used     [sha256.Size]byte // of the contents that are in use
	failure  string            // why the present contents are not; empty if they are
	material *material
	server   *tls.Config
	client   *tls.Config
}

// Open reads the files. Its error names everything that is wrong with them.
func Open(cfg Config) (*Files, error) {
	if (cfg.Certificate == "") != (cfg.Key == "") {
		return nil, errors.New("a certificate and its key are set together, or neither")
	}
	if cfg.ClientCA != "" && cfg.Certificate == "" {
		return nil, errors.New("callers can show certificates only where the service has one of its own")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Meter == nil {
		cfg.Meter = noop.Meter{}
	}
	f := &Files{cfg: cfg, looked: cfg.Now()}
	text, err := cfg.read()
	if err != nil {
		return nil, err
	}
	m, err := cfg.parse(text)
	if err != nil {
		return nil, err
	}
	f.use(m, text.sum())
	return f, f.observe()
}

// Server is how to serve. It is nil if there is no certificate.
func (f *Files) Server() *tls.Config {
	if f.cfg.Certificate == "" {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: protocols(),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.look()
			return f.server, nil
		},
	}
}

// Client is how to call at this moment: it is asked for anew for each connection.
func (f *Files) Client() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	return f.client
}

// Warnings tell what an operator has to do: a certificate that ends soon or has ended, files that are not right.
func (f *Files) Warnings() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	var warnings []string
	if f.failure != "" {
		warnings = append(warnings, "the TLS files are not right, and those from before are used: "+f.failure)
	}
	if f.material.certificate == nil {
		return warnings
	}
	leaf, now := f.material.certificate.Leaf, f.cfg.Now()
	early := min(warnTime, leaf.NotAfter.Sub(leaf.NotBefore)/warnParts)
	switch left := leaf.NotAfter.Sub(now); {
	case left <= 0:
		warnings = append(warnings, "the TLS certificate ended at "+leaf.NotAfter.UTC().Format(time.RFC3339))
	case left < early:
		warnings = append(warnings, "the TLS certificate ends at "+leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return warnings
}

func protocols() []string { return []string{"h2", "http/1.1"} }

// look reads the files if that was not done just now. It is called with the lock held.
func (f *Files) look() {
	now := f.cfg.Now()
	if now.Sub(f.looked) < lookPause {
		return
	}
	f.looked = now
	text, err := f.cfg.read()
	var m *material
	if err == nil {
		if text.sum() == f.used {
			f.failure = ""
			return
		}
		m, err = f.cfg.parse(text)
	}
	if err != nil {
		if f.failure != err.Error() {
			f.failed(err)
		}
		return
	}
	f.use(m, text.sum())
	f.count("read")
	f.cfg.Logger.Info("the TLS files have changed, and are used from now on", slog.Time("certificate_ends", f.ends()))
}

func (f *Files) failed(err error) {
	f.failure = err.Error()
	f.count("failed")
	f.cfg.Logger.Error("the TLS files have changed and are not right; those from before stay in use", slog.Any("error", err))
}

// use makes the configurations of the next connections.
func (f *Files) use(m *material, sum [sha256.Size]byte) {
	f.material, f.used, f.failure = m, sum, ""
	f.client = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, RootCAs: m.roots}
	if m.certificate == nil {
		return
	}
	f.client.Certificates = []tls.Certificate{*m.certificate}
	f.server = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols(), Certificates: []tls.Certificate{*m.certificate}}
	if m.clientCAs == nil {
		return
	}
	f.server.ClientCAs, f.server.ClientAuth = m.clientCAs, tls.VerifyClientCertIfGiven
	f.server.SessionTicketsDisabled = true // a session that is resumed would go by the authorities of its beginning
}

// ends is when the certificate ends; zero if there is none.
func (f *Files) ends() time.Time {
	if f.material.certificate == nil {
		return time.Time{}
	}
	return f.material.certificate.Leaf.NotAfter
}

func (f *Files) count(outcome string) {
	f.reloads.Add(context.Background(), 1, metric.WithAttributes(attribute.String("outcome", outcome)))
}

// observe makes the instruments.
func (f *Files) observe() (err error) {
	f.reloads, err = f.cfg.Meter.Int64Counter("wiggle.tls.reloads",
		metric.WithDescription("Times that the TLS files have changed, by outcome: read, or failed and the old ones kept."))
	if err != nil {
		return fmt.Errorf("make metrics: %w", err)
	}
	if f.cfg.Certificate == "" {
		return nil
	}
	_, err = f.cfg.Meter.Float64ObservableGauge("wiggle.tls.certificate.remaining", metric.WithUnit("s"),
		metric.WithDescription("Time until the TLS certificate ends; negative when it has."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.look()
			o.Observe(f.ends().Sub(f.cfg.Now()).Seconds())
			return nil
		}))
	if err != nil {
		return fmt.Errorf("make metrics: %w", err)
	}
	return nil
}
