package guard

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// transport is what only HTTP knows of a call.
type transport struct {
	subject string // of a client certificate that TLS has verified; empty: none
	host    string // to which the call was made, with its port
	secure  bool   // the caller, or the proxy before it, speaks TLS
	local   bool   // from the same machine to a loopback address
}

type transportKey struct{}

// transportOf is what [Wrap] noted of the call; nothing if there was nothing to note.
func transportOf(ctx context.Context) transport {
	if t, ok := ctx.Value(transportKey{}).(*transport); ok {
		return *t
	}
	return transport{}
}

// Wrap notes for the guard what interceptors do not see, for those calls where it counts: those with a client certificate or a
// cookie, and sign-in.
func Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		certified := r.TLS != nil && len(r.TLS.VerifiedChains) > 0
		if certified || r.Header["Cookie"] != nil || strings.HasPrefix(r.URL.Path, authServicePath) {
			r = r.WithContext(context.WithValue(r.Context(), transportKey{}, transportFrom(r)))
		}
		next.ServeHTTP(w, r)
	})
}

func transportFrom(r *http.Request) *transport {
	t := &transport{
		host:   r.Host,
		secure: r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https"),
		local:  loopback(r.RemoteAddr) && loopback(r.Host),
	}
	if r.TLS != nil {
		t.subject = subjectOf(r.TLS)
	}
	return t
}

// subjectOf is the subject of the certificate that TLS has verified, in the form of RFC 2253.
func subjectOf(state *tls.ConnectionState) string {
	if len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return ""
	}
	return state.VerifiedChains[0][0].Subject.String()
}

// loopback tells whether an address, with or without a port, is of the machine itself.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// callerAddress is the address from which a call came. What a proxy says of it is believed of those that are trusted only:
// the last hop that is none of them.
func callerAddress(peer string, header http.Header, trusted []netip.Prefix) string {
	address := peer
	if host, _, err := net.SplitHostPort(peer); err == nil {
		address = host
	}
	if !isTrusted(address, trusted) {
		return address
	}
	hops := strings.Split(strings.Join(header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		ip, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break // what stands before it was not written by a proxy of ours
		}
		if address = ip.Unmap().String(); !isTrusted(address, trusted) {
			break
		}
	}
	return address
}

func isTrusted(address string, trusted []netip.Prefix) bool {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(ip.Unmap()) })
}
