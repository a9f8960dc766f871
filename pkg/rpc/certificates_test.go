package rpc_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/tlsfiles"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// authority certifies what a test needs, in files of a folder. All are of one name: else clients would not show a certificate
// of another than the server asks for.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, "ca", &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// issue writes name.crt and name.key. The first is the authority's own.
func (a *authority) issue(t *testing.T, name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	must(t, os.WriteFile(a.path(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(t, os.WriteFile(a.path(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return cert, key
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }

// files are those of a process that is called name, for 127.0.0.1; of one that shows no certificate if the name is empty.
func (a *authority) files(t *testing.T, name string) *tlsfiles.Files {
	t.Helper()
	cfg := tlsfiles.Config{CA: a.path("ca.crt"), Logger: slog.New(slog.DiscardHandler), Meter: noop.Meter{}}
	if name != "" {
		a.issue(t, name, &x509.Certificate{
			Subject: pkix.Name{CommonName: name, Organization: []string{"Example"}}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		})
		cfg.Certificate, cfg.Key, cfg.ClientCA = a.path(name+".crt"), a.path(name+".key"), a.path("ca.crt")
	}
	files, err := tlsfiles.Open(cfg)
	must(t, err)
	return files
}

// secure is a server over TLS and TCP, and what it last saw of a caller's certificate.
type secure struct {
	url     string
	subject chan string
}

func serveSecure(t *testing.T, transport rpc.Transport) secure {
	t.Helper()
	s := secure{subject: make(chan string, 100)}
	server, err := rpc.NewServer(transport.Server(rpc.ServerConfig{Wrap: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			subject := ""
			if len(r.TLS.VerifiedChains) > 0 {
				subject = r.TLS.VerifiedChains[0][0].Subject.String()
			}
			s.subject <- subject
			next.ServeHTTP(w, r)
		})
	}}))
	must(t, err)
	who, _ := whoCalls()
	server.Mount(wigglev1connect.NewWorkerServiceHandler(who, server.Options()...))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		_ = server.Close()
		must(t, <-served)
	})
	s.url = "https://" + listener.Addr().String()
	return s
}

// call tells who the server takes a client for.
func (s secure) call(t *testing.T, transport rpc.Transport) (string, error) {
	t.Helper()
	cfg := transport.Client(rpc.ClientConfig{})
	options, err := rpc.NewClientOptions(cfg)
	must(t, err)
	client := rpc.NewHTTPClient(cfg)
	defer client.CloseIdleConnections()
	res, err := wigglev1connect.NewWorkerServiceClient(client, s.url, options...).PollTasks(t.Context(), &wigglev1.PollTasksRequest{Worker: "w"})
	if err != nil {
		return "", err
	}
	return res.GetTasks()[0].GetId(), nil
}

// AUT-4: what a certificate of the cluster's authority is worth, beside a key and in place of one, and that others' are worth
// nothing.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority(t), newAuthority(t)
	own := ours.files(t, "instances")
	foreign := others.files(t, "foreign")
	trusting := func(files *tlsfiles.Files, keys ...string) rpc.Transport { // a client's, which trusts our servers whatever it shows
		show := files.Client().Clone()
		show.RootCAs = own.Client().RootCAs
		return rpc.Transport{ClientTLS: func() *tls.Config { return show }, ServiceKeys: keys}
	}
	service, nobody := ours.files(t, "leader"), ours.files(t, "")
	const certificate, key = "WIGGLE_TLS_CERT", "WIGGLE_SERVICE_KEY"
	for name, c := range map[string]struct {
		server rpc.Transport
		client rpc.Transport
		who    string
		code   faults.Code
		text   string
	}{
		"certificates, one of ours": {rpc.Transport{RequireService: true, ServiceCertificates: true}, trusting(service), "service", 0, ""},
		"certificates, none": {
			rpc.Transport{RequireService: true, ServiceCertificates: true}, trusting(nobody), "", faults.CodeUnauthenticated, certificate,
		},
		"certificates, another authority's": {
			rpc.Transport{RequireService: true, ServiceCertificates: true}, trusting(foreign), "", faults.CodeUnavailable, "",
		},
		"both, both": {
			rpc.Transport{RequireService: true, ServiceCertificates: true, ServiceKeys: []string{newKey}}, trusting(service, newKey), "service", 0, "",
		},
		"both, a certificate": {
			rpc.Transport{RequireService: true, ServiceCertificates: true, ServiceKeys: []string{newKey}},
			trusting(service),
			"", faults.CodeUnauthenticated, key,
		},
		"both, a key": {
			rpc.Transport{RequireService: true, ServiceCertificates: true, ServiceKeys: []string{newKey}},
			trusting(nobody, newKey),
			"", faults.CodeUnauthenticated, certificate,
		},
		"router, a certificate":          {rpc.Transport{ServiceKeys: []string{newKey}}, trusting(service), "stranger", 0, ""},
		"router, a key":                  {rpc.Transport{ServiceKeys: []string{newKey}}, trusting(nobody, newKey), "service", 0, ""},
		"router, none":                   {rpc.Transport{ServiceKeys: []string{newKey}}, trusting(nobody), "stranger", 0, ""},
		"router, another authority's":    {rpc.Transport{ServiceKeys: []string{newKey}}, trusting(foreign), "", faults.CodeUnavailable, ""},
		"keyless router, a certificate":  {rpc.Transport{}, trusting(service), "stranger", 0, ""},
		"keyless router, any key at all": {rpc.Transport{}, trusting(nobody, newKey), "stranger", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.server.ServerTLS = own.Server()
			s := serveSecure(t, c.server)
			who, err := s.call(t, c.client)
			if who != c.who || faults.CodeOf(err) != c.code || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Fatalf("taken for %q, %v", who, err)
			}
			if c.code != 0 {
				return
			}
			want := ""
			if len(c.client.ClientTLS().Certificates) > 0 || c.client.ClientTLS().GetClientCertificate != nil {
				want = "CN=leader,O=Example"
			}
			if got := <-s.subject; got != want {
				t.Errorf("the subject of the caller's certificate is %q, want %q", got, want)
			}
		})
	}
}

// Probes have no certificate.
func TestHealthNeedsNoCertificate(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	s := serveSecure(t, rpc.Transport{ServerTLS: a.files(t, "instances").Server(), RequireService: true, ServiceCertificates: true})
	client := rpc.NewHTTPClient(rpc.ClientConfig{CurrentTLS: a.files(t, "").Client})
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/healthz", nil)
	must(t, err)
	if code, text := do(t, client, req); code != http.StatusOK {
		t.Errorf("%d: %s", code, text)
	}
}
