package rpc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
)

// ServiceKeyHeader carries the key by which a service shows the others that it is one of them (AUT-4). A server takes it
// out of a request before anything else sees it.
const ServiceKeyHeader = "Wiggle-Service-Key"

// refusalPause is how often at most a server logs that it refuses callers which are no services.
const refusalPause = 10 * time.Second

type callerKey struct{}

// CalledByService tells whether the caller of the handler with ctx has shown that it is a service of this cluster: by one
// of [ServerConfig].ServiceKeys and a client certificate, as far as the configuration asks for them, or because its connection
// came in by [Server.ServeInside]. It is false outside of a server's handlers.
func CalledByService(ctx context.Context) bool {
	known, _ := ctx.Value(callerKey{}).(bool)
	return known
}

// identity finds out which callers are services, and refuses others where only services may call.
type identity struct {
	keys         [][sha256.Size]byte
	require      bool
	certificates bool
	logger       *slog.Logger
	refusals     *connect.ErrorWriter
	logged       atomic.Int64 // when a refusal was logged, in Unix nanoseconds
}

func newIdentity(cfg *ServerConfig) *identity {
	i := &identity{
		require: cfg.RequireService, certificates: cfg.ServiceCertificates, logger: cfg.Logger, refusals: connect.NewErrorWriter(),
	}
	for _, key := range cfg.ServiceKeys {
		i.keys = append(i.keys, sha256.Sum256([]byte(key)))
	}
	return i
}

// caller notes for handlers whether the caller is a service, and keeps the key from them.
func (i *identity) caller(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown := r.Header.Values(ServiceKeyHeader)
		r.Header.Del(ServiceKeyHeader)
		accepted := len(shown) == 1 && i.accepts(shown[0])
		switch {
		case len(shown) > 0 && len(i.keys) > 0 && !accepted:
			i.refuse(w, r, "the key in the header "+ServiceKeyHeader+" is not one that this service accepts: "+
				"give all services of the cluster the same WIGGLE_SERVICE_KEY")
			return
		case isInside(r.Context()), (accepted || len(i.keys) == 0) && certified(r) && i.certificates, accepted && !i.certificates:
			r = r.WithContext(context.WithValue(r.Context(), callerKey{}, true))
		}
		next.ServeHTTP(w, r)
	})
}

// certified tells whether the caller has shown a certificate, which TLS has verified.
func certified(r *http.Request) bool { return r.TLS != nil && len(r.TLS.VerifiedChains) > 0 }

func isInside(ctx context.Context) bool {
	inside, _ := ctx.Value(insideKey{}).(bool)
	return inside
}

// accepts compares with every key, in a time that tells nothing about them.
func (i *identity) accepts(key string) bool {
	sum, equal := sha256.Sum256([]byte(key)), 0
	for _, k := range i.keys {
		equal |= subtle.ConstantTimeCompare(sum[:], k[:])
	}
	return equal == 1
}

// only lets services through to a handler where only services may call.
func (i *identity) only(next http.Handler) http.Handler {
	if !i.require {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if CalledByService(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		i.refuse(w, r, i.missing(r))
	})
}

// missing says what a caller has to show that has not.
func (i *identity) missing(r *http.Request) string {
	const call = "only services of the cluster may call this port; clients and workers call a router. A service shows "
	if i.certificates && !certified(r) {
		return call + "a client certificate: set WIGGLE_TLS_CERT and WIGGLE_TLS_KEY for it"
	}
	return call + "the cluster's key: set WIGGLE_SERVICE_KEY for it, to the same as here"
}

// refuse answers a call whose request has not been read.
func (i *identity) refuse(w http.ResponseWriter, r *http.Request, why string) {
	now, last := time.Now().UnixNano(), i.logged.Load()
	if now-last > int64(refusalPause) && i.logged.CompareAndSwap(last, now) {
		i.logger.WarnContext(r.Context(), "a call was refused: the caller is no service of this cluster",
			slog.String("procedure", r.URL.Path), slog.String("from", r.RemoteAddr))
	}
	_ = i.refusals.Write(w, r, ToConnect(bare(connect.CodeUnauthenticated, why))) // the peer is gone, and nobody is left to tell
}

type insideKey struct{}

// insideListener marks the connections of a listener that none but services can reach.
type insideListener struct{ net.Listener }

func (l insideListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return insideConn{conn}, nil
}

type insideConn struct{ net.Conn }

// connContext tells handlers from which listener a connection came.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	if _, ok := conn.(insideConn); ok {
		return context.WithValue(ctx, insideKey{}, true)
	}
	return ctx
}
