package rpc

import (
	"crypto/tls"
	"time"

	"github.com/wiggle-run/wiggle/pkg/release"
)

// Limits are what a port takes of a caller (AUT-10). A zero field has the default of [ServerConfig]'s.
type Limits struct {
	// HeaderBytes bounds the headers of a request.
	HeaderBytes int
	// Streams bounds the calls under way on one connection.
	Streams int
	// CallDuration bounds a unary call.
	CallDuration time.Duration
}

// Transport is how the services of a cluster talk to each other: by what they know their own (AUT-4), what is spoken on the
// way, and within which limits (AUT-10). A process makes one of its settings and gives it to its services. The zero value
// shows nothing, asks for nothing and speaks plain text, as is right between services of one process: over a
// [MemoryNetwork] the network is the identity.
type Transport struct {
	// ServiceKeys are the keys by which services know each other: the first is shown, all are accepted.
	ServiceKeys []string
	// RequireService refuses callers that are no services.
	RequireService bool
	// ServiceCertificates has services show a client certificate: beside a key, or in place of one if there are none.
	ServiceCertificates bool
	// ServerTLS is spoken on the port. Nil: plain text.
	ServerTLS *tls.Config
	// ClientTLS tells what to speak to https URLs, anew for each connection. Nil: the system's roots.
	ClientTLS func() *tls.Config
	// Limits are what the port takes.
	Limits Limits
	// Releases keeps the releases of the services that are called. Nil: nobody does.
	Releases *release.Peers
	// Warnings, if set, tells what /readyz warns of beside the releases.
	Warnings func() []string
}

// Server puts the transport into the configuration of a server. Fields that it has nothing to say about stay as they are.
func (t Transport) Server(cfg ServerConfig) ServerConfig {
	cfg.ServiceKeys, cfg.RequireService, cfg.ServiceCertificates = t.ServiceKeys, t.RequireService, t.ServiceCertificates
	cfg.TLS, cfg.Warnings = t.ServerTLS, t.warnings
	cfg.MaxHeaderBytes = orDefault(t.Limits.HeaderBytes, cfg.MaxHeaderBytes)
	cfg.MaxConcurrentStreams = orDefault(t.Limits.Streams, cfg.MaxConcurrentStreams)
	if own := t.Limits.CallDuration; own > 0 && (cfg.MaxCallDuration == 0 || own < cfg.MaxCallDuration) {
		cfg.MaxCallDuration = own // a server whose calls are short keeps its own bound
	}
	return cfg
}

// Client puts the transport into the configuration of a client of services. It must not be used to call anybody else: the
// client shows the service key.
func (t Transport) Client(cfg ClientConfig) ClientConfig {
	cfg.CurrentTLS = t.ClientTLS
	if len(t.ServiceKeys) > 0 {
		cfg.ServiceKey = t.ServiceKeys[0]
	}
	if t.Releases != nil {
		cfg.PeerRelease = t.Releases.Seen
	}
	return cfg
}

func (t Transport) warnings() []string {
	warnings := t.Releases.Warnings()
	if t.Warnings != nil {
		warnings = append(warnings, t.Warnings()...)
	}
	return warnings
}
