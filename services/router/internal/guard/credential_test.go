package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/services/router/internal/principals"
)

const (
	apiKey  = "wgk_k1_0123456789abcdefABCDEF-x_y"
	session = "wgs_s1_0123456789abcdefABCDEF"
)

func TestBearer(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"Bearer " + apiKey: apiKey, "bearer  " + session: session, "BEARER " + apiKey + " ": apiKey,
		"": "", apiKey: "", "Basic " + apiKey: "", "Bearer": "", "Bearer ": "", "Bearer x": "", "Bearer wgk_": "", "Bearer wgk_a": "",
		"Bearer wgk_a_": "", "Bearer wgk__a": "", "Bearer wgx_a_b": "", "Bearer wgk_a_b c": "", "Bearer wgk_a_ü": "",
		"Bearer wgk_a_" + strings.Repeat("x", 600): "",
	} {
		got, err := bearer([]string{value})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is read as %q, %v", value, got, err)
		}
		if err != nil && (faults.CodeOf(err) != faults.CodeUnauthenticated || len(value) > 20 && strings.Contains(err.Error(), value)) {
			t.Errorf("%q: %v", value, err)
		}
	}
	if _, err := bearer([]string{"Bearer " + apiKey, "Bearer " + apiKey}); err == nil {
		t.Error("two headers are taken")
	}
}

func FuzzBearer(f *testing.F) {
	for _, seed := range []string{"Bearer " + apiKey, "bearer " + session, "Basic x", "", "Bearer wgk_a_b\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		token, err := bearer([]string{value})
		if err != nil {
			if token != "" || faults.CodeOf(err) != faults.CodeUnauthenticated {
				t.Errorf("%q: %q, %v", value, token, err)
			}
			return
		}
		if again, err := bearer([]string{"Bearer " + token}); again != token || err != nil || !strings.Contains(value, token) {
			t.Errorf("%q is read as %q, and that as %q, %v", value, token, again, err)
		}
	})
}

// shownBy is what a request with a cookie shows, as a handler behind Wrap sees it.
func shownBy(t *testing.T, headers ...string) (token string, found bool, err error) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://router.example:8420/x", http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		credential, shown, e := credentialOf(r.Context(), r.Header)
		token, found, err = credential.Text, shown, e
	})).ServeHTTP(httptest.NewRecorder(), req)
	return token, found, err
}

// AUT-9: a cookie counts only for a page of the router itself, by a call that no form can make.
func TestCookie(t *testing.T) {
	t.Parallel()
	cookie := []string{"Cookie", "other=1; wiggle_session=" + session}
	for _, c := range []struct {
		name    string
		headers []string
		want    bool
	}{
		{"same origin", []string{"Sec-Fetch-Site", "same-origin", "Connect-Protocol-Version", "1"}, true},
		{"same origin, own header", []string{"Sec-Fetch-Site", "same-origin", "Wiggle-Csrf", "1"}, true},
		{"older browser", []string{"Origin", "http://router.example:8420", "Wiggle-Csrf", "1"}, true},
		{"a form of the same origin", []string{"Sec-Fetch-Site", "same-origin"}, false},
		{"another site", []string{"Sec-Fetch-Site", "cross-site", "Wiggle-Csrf", "1"}, false},
		{"another port", []string{"Sec-Fetch-Site", "same-site", "Wiggle-Csrf", "1"}, false},
		{"another site that claims the origin", []string{"Sec-Fetch-Site", "cross-site", "Origin", "http://router.example:8420", "Wiggle-Csrf", "1"}, false},
		{"older browser, another site", []string{"Origin", "http://evil.example", "Wiggle-Csrf", "1"}, false},
		{"older browser, sandboxed", []string{"Origin", "null", "Wiggle-Csrf", "1"}, false},
		{"no browser", []string{"Wiggle-Csrf", "1"}, false},
		{"nothing", nil, false},
	} {
		token, found, err := shownBy(t, append(c.headers, cookie...)...)
		if (token == session && found && err == nil) != c.want || err != nil && faults.CodeOf(err) != faults.CodeUnauthenticated {
			t.Errorf("%s: %q, %v, %v", c.name, token, found, err)
		}
	}
	good := []string{"Sec-Fetch-Site", "same-origin", "Wiggle-Csrf", "1"}
	if _, _, err := shownBy(t, append(good, "Cookie", "wiggle_session=a; wiggle_session=b")...); err == nil {
		t.Error("two sessions are taken")
	}
	if _, found, err := shownBy(t, append(good, "Cookie", "other=1")...); found || err != nil {
		t.Errorf("another cookie: %v, %v", found, err)
	}
	if token, _, err := shownBy(t, append(cookie, "Authorization", "Bearer "+apiKey)...); token != apiKey || err != nil {
		t.Errorf("a header and a cookie: %q, %v", token, err)
	}
	if token, _, err := shownBy(t, append(append(good, cookie...), "Authorization", "nonsense")...); err == nil {
		t.Errorf("a header that is wrong, and a cookie: %q", token)
	}
}

// A certificate that TLS has verified is a credential by its subject, behind a header and a cookie; one that it has not is none.
func TestCertificate(t *testing.T) {
	t.Parallel()
	chain := []*x509.Certificate{{Subject: pkix.Name{CommonName: "worker-7", Organization: []string{"Example"}}}}
	for name, c := range map[string]struct {
		state  *tls.ConnectionState
		bearer string
		want   principals.Credential
	}{
		"verified": {
			&tls.ConnectionState{PeerCertificates: chain, VerifiedChains: [][]*x509.Certificate{chain}}, "",
			principals.Credential{Kind: principals.Certificate, Text: "CN=worker-7,O=Example"},
		},
		"not verified": {&tls.ConnectionState{PeerCertificates: chain}, "", principals.Credential{}},
		"none":         {&tls.ConnectionState{}, "", principals.Credential{}},
		"plain text":   {nil, "", principals.Credential{}},
		"with a key": {
			&tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{chain}}, apiKey,
			principals.Credential{Kind: principals.Token, Text: apiKey},
		},
	} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/x", http.NoBody)
		if req.TLS = c.state; c.bearer != "" {
			req.Header.Set("Authorization", "Bearer "+c.bearer)
		}
		Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got, shown, err := credentialOf(r.Context(), r.Header)
			if got != c.want || shown != (c.want.Text != "") || err != nil {
				t.Errorf("%s: %+v, %v, %v", name, got, shown, err)
			}
		})).ServeHTTP(httptest.NewRecorder(), req)
	}
}

func TestCallerAddress(t *testing.T) {
	t.Parallel()
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, c := range []struct{ peer, forwarded, want string }{
		{"192.0.2.1:1234", "", "192.0.2.1"},
		{"192.0.2.1:1234", "198.51.100.7", "192.0.2.1"}, // its word counts for nothing
		{"10.0.0.1:1234", "", "10.0.0.1"},
		{"10.0.0.1:1234", "198.51.100.7", "198.51.100.7"},
		{"10.0.0.1:1234", "203.0.113.9, 198.51.100.7, 10.2.3.4", "198.51.100.7"}, // what stands before it anyone can write
		{"10.0.0.1:1234", "198.51.100.7, nonsense", "10.0.0.1"},
		{"[::ffff:10.0.0.1]:1234", "198.51.100.7", "198.51.100.7"},
		{"[2001:db8::1]:1234", "", "2001:db8::1"},
		{"client", "", "client"},
	} {
		header := http.Header{}
		if c.forwarded != "" {
			header.Set("X-Forwarded-For", c.forwarded)
		}
		if got := callerAddress(c.peer, header, trusted); got != c.want {
			t.Errorf("from %s, forwarded for %q: %s, want %s", c.peer, c.forwarded, got, c.want)
		}
	}
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost": true, "localhost:8420": true, "router.example:8420": false, "": false,
		"127.0.0.1.example:1": false,
	} {
		if loopback(address) != want {
			t.Errorf("%q", address)
		}
	}
	if transportOf(context.Background()) != (transport{}) {
		t.Error("a context without anything")
	}
}
