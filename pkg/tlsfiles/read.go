package tlsfiles

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxFile bounds what is read of a file: bundles of authorities of whole systems are a quarter of it.
const maxFile = 1 << 20

// material is what the files hold.
type material struct {
	certificate *tls.Certificate // nil: none configured
	clientCAs   *x509.CertPool
	roots       *x509.CertPool
}

// contents are the bytes of the files, in the order certificate, key, client authorities, roots.
type contents [4][]byte

func (c *contents) sum() [sha256.Size]byte {
	h := sha256.New()
	for _, text := range c {
		_, _ = fmt.Fprintf(h, "%d:", len(text)) // a hash takes everything
		_, _ = h.Write(text)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// read reads the files that are configured.
func (cfg *Config) read() (c contents, err error) {
	var errs []error
	for i, name := range []string{cfg.Certificate, cfg.Key, cfg.ClientCA, cfg.CA} {
		if name == "" {
			continue
		}
		text, err := readFile(name)
		if err != nil {
			errs = append(errs, err)
		}
		c[i] = text
	}
	return c, errors.Join(errs...)
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxFile)
	}
	return text, err
}

// parse makes of the files what TLS needs. Its error names every file that is not right.
func (cfg *Config) parse(c contents) (*material, error) {
	m := &material{}
	var errs []error
	if cfg.Certificate != "" {
		pair, err := tls.X509KeyPair(c[0], c[1])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s with the key %s: %w", cfg.Certificate, cfg.Key, err))
		}
		m.certificate = &pair
	}
	for _, bundle := range []struct {
		name string
		text []byte
		pool **x509.CertPool
	}{{cfg.ClientCA, c[2], &m.clientCAs}, {cfg.CA, c[3], &m.roots}} {
		if bundle.name == "" {
			continue
		}
		*bundle.pool = x509.NewCertPool()
		if !(*bundle.pool).AppendCertsFromPEM(bundle.text) {
			errs = append(errs, fmt.Errorf("%s holds no certificate in PEM", bundle.name))
		}
	}
	return m, errors.Join(errs...)
}
