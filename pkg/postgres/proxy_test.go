package postgres_test

import (
	"bytes"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"testing"
)

// proxy stands between a pool and its server and can break what passes through.
type proxy struct {
	listener net.Listener
	target   string // socket of the server

	mu      sync.Mutex
	cutAt   []byte // a client message containing this is passed on, and the connection cut before the answer
	refuse  bool
	conns   map[net.Conn]bool
	closing sync.WaitGroup
}

// newProxy starts a proxy in front of a database and returns the connection string that leads through it.
func newProxy(t *testing.T, databaseURL string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	p := &proxy{
		listener: l, conns: map[net.Conn]bool{},
		target: filepath.Join(q.Get("host"), ".s.PGSQL."+q.Get("port")),
	}
	p.closing.Go(p.serve)
	t.Cleanup(func() {
		_ = l.Close()
		p.cutAll()
		p.closing.Wait()
	})
	return p, fmt.Sprintf("postgres://%s@%s%s?sslmode=disable", u.User.Username(), l.Addr(), u.Path)
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("unix", p.target)
		p.mu.Lock()
		if err != nil || p.refuse {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			p.mu.Unlock()
			continue
		}
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.closing.Go(func() { p.pump(server, client, true) })
		p.closing.Go(func() { p.pump(client, server, false) })
	}
}

// pump copies one direction until either end closes, or the message to cut at has been passed to the server.
func (p *proxy) pump(to, from net.Conn, towardsServer bool) {
	defer func() { _, _ = to.Close(), from.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		cut := towardsServer && len(p.cutAt) > 0 && bytes.Contains(buf[:n], p.cutAt)
		if cut {
			p.cutAt = nil
			_ = from.Close() // the answer has nowhere to go
		}
		p.mu.Unlock()
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
		if cut {
			// Stay until the server has answered, so that it has surely read the message.
			return
		}
	}
}

// cutOnce makes the proxy pass on the next message that contains text and then cut the connection.
func (p *proxy) cutOnce(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutAt = []byte(text)
}

// setRefuse makes the proxy drop new connections, or take them again.
func (p *proxy) setRefuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// cutAll breaks all connections.
func (p *proxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}
