package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/wiggle-run/wiggle/pkg/settings"
)

const settingURLs = "WIGGLE_NATS_URLS"

const (
	// StreamName is the stream's.
	StreamName = "WIGGLE_EVENTS"
	// DefaultMaxAge is how long the stream keeps events.
	DefaultMaxAge = 7 * 24 * time.Hour
	// duplicateWindow is for how long NATS knows an event that is sent twice.
	duplicateWindow = 10 * time.Minute
	// callTimeout bounds a call to NATS.
	callTimeout = 5 * time.Second
	// MaxInFlight is how many events a publisher sends before it waits for what became of them.
	MaxInFlight = 512
	// pendingBatches is how many batches' messages the client keeps at most, those that were given up included.
	pendingBatches = 8

	reconnectWait   = 250 * time.Millisecond
	reconnectJitter = 250 * time.Millisecond
	connectTimeout  = 2 * time.Second
	pingInterval    = 10 * time.Second
)

// Errors.
var (
	// ErrUnavailable: NATS or its JetStream does not answer. Trying again later is right.
	ErrUnavailable = errors.New("NATS does not answer")
	// ErrDisplaced: somebody else appends to the stream; nothing behind it was stored.
	ErrDisplaced = errors.New("another publisher appends to the stream")
	// ErrOtherStream: the stream is another making than the one that was meant; nothing was stored in it.
	ErrOtherStream = errors.New("the stream was made anew")
)

var errNotConnected = errors.New("not connected")

// Config says how to reach NATS.
type Config struct {
	// URLs are the servers', such as nats://10.0.0.7:4222. Required.
	URLs []string
	// Name is what the connection is called in NATS.
	Name string
	// CredentialsFile is a NATS credentials file. Empty: what the URLs say.
	CredentialsFile string
	// TLS is used for tls URLs. Nil: the system's roots.
	TLS *tls.Config
	// MaxAge is how long the stream keeps events. 0: 7 days.
	MaxAge time.Duration
	// Replicas is how many servers of a NATS cluster hold the stream. 0: 1.
	Replicas int
	// Logger gets what operators have to know. Nil: nothing is logged.
	Logger *slog.Logger
}

// Declare declares the settings by which NATS is reached, for every service that uses it. URLs may hold passwords, so they
// are never shown.
func (c *Config) Declare(r *settings.Registry) {
	r.Strings(&c.URLs, settingURLs, nil, "URLs of the NATS servers that carry the event log to search and other followers."+
		" Not set: events stay in the shards.", settings.Example("nats://10.0.0.7:4222,nats://10.0.0.8:4222"), settings.Hidden())
	r.String(&c.CredentialsFile, "WIGGLE_NATS_CREDENTIALS", "",
		"Path of a NATS credentials file. Not set: user and password of the URLs, if any.",
		settings.Example("/etc/wiggle/nats.creds"))
	r.Check(c.checkURLs)
}

func (c *Config) checkURLs() error {
	for _, configured := range c.URLs {
		u, err := url.Parse(configured)
		if err != nil || u.Host == "" || (u.Scheme != "nats" && u.Scheme != "tls") {
			return errors.New(settingURLs + " has an entry that is not a nats or tls URL")
		}
	}
	return nil
}

// Bus is a connection to the stream. It is safe for concurrent use.
type Bus struct {
	cfg  Config
	log  *slog.Logger
	conn *nats.Conn
	js   jetstream.JetStream

	mu sync.Mutex // held while publishing
	// seen is the making of the stream that last is the last number of; empty if that is not known.
	seen   string
	last   uint64
	window int // how many messages may be under way
}

// Open prepares a connection. It does not fail while NATS is down, but may take two seconds for each server that does not
// answer at all.
func Open(cfg Config) (*Bus, error) {
	if len(cfg.URLs) == 0 {
		return nil, errors.New("bus: no URL of a NATS server")
	}
	if cfg.MaxAge == 0 {
		cfg.MaxAge = DefaultMaxAge
	}
	if cfg.Replicas == 0 {
		cfg.Replicas = 1
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Bus{cfg: cfg, log: cfg.Logger}
	options := []nats.Option{
		nats.Name(cfg.Name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.Timeout(connectTimeout),
		nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectJitter, reconnectJitter), nats.PingInterval(pingInterval),
		nats.ReconnectBufSize(-1), // what cannot be sent now fails now
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				b.log.Warn("the connection to NATS is lost; it is made anew", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { b.log.Info("connected to NATS again") }),
	}
	if cfg.CredentialsFile != "" {
		options = append(options, nats.UserCredentials(cfg.CredentialsFile))
	}
	if cfg.TLS != nil {
		options = append(options, nats.Secure(cfg.TLS))
	}
	var err error
	if b.conn, err = nats.Connect(strings.Join(cfg.URLs, ","), options...); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	// The client's own bound is wider: messages that were given up count in it until their time is over.
	b.js, err = jetstream.New(b.conn, jetstream.WithDefaultTimeout(callTimeout),
		jetstream.WithPublishAsyncMaxPending(pendingBatches*MaxInFlight), jetstream.WithPublishAsyncTimeout(callTimeout))
	if err != nil {
		b.conn.Close()
		return nil, fmt.Errorf("bus: %w", err)
	}
	return b, nil
}

// Close ends the connection.
func (b *Bus) Close() { b.conn.Close() }

// Connected tells whether NATS answers.
func (b *Bus) Connected() bool { return b.conn.IsConnected() }

// Stream is the stream as it is.
type Stream struct {
	// ID names this making of the stream: a stream that was deleted, or whose storage was lost, comes back with another.
	ID string
	// Messages is how many it holds.
	Messages uint64
	// Last is the number of the last.
	Last uint64
}

// EnsureStream makes the stream if it is not there, and tells how it is. ErrUnavailable.
func (b *Bus) EnsureStream(ctx context.Context) (Stream, error) {
	if !b.Connected() {
		return Stream{}, unavailable(ctx, "look at the stream", errNotConnected)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := b.js.Stream(ctx, StreamName)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		// Never an update: whoever else makes it meanwhile makes the same, and one that an operator has changed is his.
		stream, err = b.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: StreamName, Description: "Wiggle's event log", Subjects: []string{SubjectRoot + ".>"},
			Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, Storage: jetstream.FileStorage,
			MaxAge: b.cfg.MaxAge, Replicas: b.cfg.Replicas, Duplicates: min(duplicateWindow, b.cfg.MaxAge),
			Compression: jetstream.S2Compression,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			stream, err = b.js.Stream(ctx, StreamName)
		}
	}
	if err != nil {
		return Stream{}, unavailable(ctx, "look at the stream", err)
	}
	info := stream.CachedInfo()
	return Stream{
		ID: strconv.FormatInt(info.Created.UnixNano(), 36), Messages: info.State.Msgs, Last: info.State.LastSeq,
	}, nil
}

// unavailable is an error of NATS as ours. That the caller gave up stays what it is.
func unavailable(ctx context.Context, doing string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
}
