package wiggle_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"
)

// network connects a client and a server without sockets, so that tests may run in a
// synctest bubble: real connections but for the bytes' way.
type network struct {
	backlog chan net.Conn
	closed  chan struct{}

	mu     sync.Mutex
	conns  []*memConn // every end
	lost   bool       // nothing arrives
	dialed int
}

func newNetwork() *network {
	return &network{backlog: make(chan net.Conn), closed: make(chan struct{})}
}

// serve serves a handler over HTTP/1.1 and HTTP/2 until the test ends.
func (n *network) serve(t *testing.T, h http.Handler) {
	t.Helper()
	srv := &http.Server{Handler: h, Protocols: new(http.Protocols), ReadHeaderTimeout: time.Hour}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(n); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
}

// lose makes the network swallow all, as when packets are dropped, or ends that for
// connections to come.
func (n *network) lose(lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = lost
}

// cut breaks every connection.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		c.cut()
	}
	n.conns = nil
}

func (n *network) dials() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dialed
}

func (n *network) dropping() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lost
}

// DialContext connects to the server, whatever the address.
func (n *network) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := newPipe(n), newPipe(n)
	a, b := &memConn{in: near, out: far}, &memConn{in: far, out: near}
	n.mu.Lock()
	n.dialed++
	n.conns = append(n.conns, a, b)
	n.mu.Unlock()
	select {
	case n.backlog <- b:
		return a, nil
	case <-n.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.backlog:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error {
	select {
	case <-n.closed:
	default:
		close(n.closed)
	}
	return nil
}

func (n *network) Addr() net.Addr { return &net.TCPAddr{} }

// pipe is one direction of a connection: bytes that wait to be read, however many.
type pipe struct {
	network  *network
	mu       sync.Mutex
	changed  *sync.Cond
	data     []byte
	err      error // once there is nothing more to read
	deadline time.Time
	timer    *time.Timer
}

func newPipe(n *network) *pipe {
	p := &pipe{network: n}
	p.changed = sync.NewCond(&p.mu)
	return p
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case len(p.data) > 0:
			n := copy(b, p.data)
			p.data = p.data[n:]
			return n, nil
		case p.err != nil:
			return 0, p.err
		case !p.deadline.IsZero() && !p.deadline.After(time.Now()):
			return 0, os.ErrDeadlineExceeded
		}
		p.changed.Wait()
	}
}

func (p *pipe) write(b []byte) (int, error) {
	if p.network.dropping() {
		return len(b), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return 0, p.err
	}
	p.data = append(p.data, b...)
	p.changed.Broadcast()
	return len(b), nil
}

func (p *pipe) close(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	if p.timer != nil {
		p.timer.Stop()
	}
	p.changed.Broadcast()
}

func (p *pipe) setDeadline(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = at
	if p.timer != nil {
		p.timer.Stop()
	}
	if !at.IsZero() {
		p.timer = time.AfterFunc(time.Until(at), p.changed.Broadcast)
	}
	p.changed.Broadcast()
}

type memConn struct{ in, out *pipe }

func (c *memConn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *memConn) Write(b []byte) (int, error) { return c.out.write(b) }

func (c *memConn) Close() error {
	c.in.close(net.ErrClosed)
	if !c.in.network.dropping() {
		c.out.close(io.EOF)
	}
	return nil
}

func (c *memConn) cut() {
	c.in.close(io.ErrUnexpectedEOF)
	c.out.close(io.ErrUnexpectedEOF)
}

func (c *memConn) LocalAddr() net.Addr                { return &net.TCPAddr{} }
func (c *memConn) RemoteAddr() net.Addr               { return &net.TCPAddr{} }
func (c *memConn) SetReadDeadline(at time.Time) error { c.in.setDeadline(at); return nil }
func (c *memConn) SetWriteDeadline(time.Time) error   { return nil }
func (c *memConn) SetDeadline(at time.Time) error     { return c.SetReadDeadline(at) }

// httpClient is a client of the server, over HTTP/2 or over HTTP/1.1 alone.
func (n *network) httpClient(t *testing.T, http2 bool) *http.Client {
	t.Helper()
	tr := &http.Transport{DialContext: n.DialContext, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}
