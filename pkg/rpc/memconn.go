package rpc

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// memoryBuffer is how many bytes may be on the way in one direction: a writer beyond that waits for the reader.
const memoryBuffer = 256 << 10

// memoryLink is a connection: two pipes, one in each direction.
type memoryLink struct {
	network *MemoryNetwork
	route   route
	there   *memoryPipe
	back    *memoryPipe
	open    atomic.Int32 // ends that are not closed; until then partitions apply
}

func newMemoryLink(network *MemoryNetwork, r route) (link *memoryLink, near, far *memoryConn) {
	link = &memoryLink{network: network, route: r, there: newMemoryPipe(), back: newMemoryPipe()}
	link.open.Store(2)
	near = &memoryConn{link: link, in: link.back, out: link.there, local: memoryAddr(r.from), remote: memoryAddr(r.to)}
	far = &memoryConn{link: link, in: link.there, out: link.back, local: memoryAddr(r.to), remote: memoryAddr(r.from)}
	return link, near, far
}

func (l *memoryLink) stall(stalled bool) {
	l.there.stall(stalled)
	l.back.stall(stalled)
}

func (l *memoryLink) reset() {
	l.there.fail(errReset)
	l.back.fail(errReset)
}

// memoryConn is one end of a link. It is a net.Conn in every respect: buffered, with deadlines, safe for concurrent use.
type memoryConn struct {
	link          *memoryLink
	in, out       *memoryPipe
	local, remote memoryAddr
	once          sync.Once
}

func (c *memoryConn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *memoryConn) Write(b []byte) (int, error) { return c.out.write(b) }

// Close ends both directions. The peer reads what is on the way, then io.EOF.
func (c *memoryConn) Close() error {
	c.out.closeWrite()
	c.in.closeRead()
	c.once.Do(func() {
		if c.link.open.Add(-1) == 0 {
			c.link.network.forget(c.link)
		}
	})
	return nil
}

func (c *memoryConn) LocalAddr() net.Addr  { return c.local }
func (c *memoryConn) RemoteAddr() net.Addr { return c.remote }

func (c *memoryConn) SetDeadline(t time.Time) error {
	c.in.readBy.set(c.in, t)
	c.out.writeBy.set(c.out, t)
	return nil
}

func (c *memoryConn) SetReadDeadline(t time.Time) error {
	c.in.readBy.set(c.in, t)
	return nil
}

func (c *memoryConn) SetWriteDeadline(t time.Time) error {
	c.out.writeBy.set(c.out, t)
	return nil
}

// memoryPipe is one direction: a ring of bytes between a writer and a reader.
type memoryPipe struct {
	mu      sync.Mutex
	readers *sync.Cond
	writers *sync.Cond
	ring    []byte
	start   int
	length  int

	stalled     bool  // what was written does not arrive
	failed      error // the connection is cut
	writeClosed bool  // the writer has said all
	readClosed  bool  // the reader is gone

	readBy  deadline
	writeBy deadline
}

func newMemoryPipe() *memoryPipe {
	p := &memoryPipe{}
	p.readers, p.writers = sync.NewCond(&p.mu), sync.NewCond(&p.mu)
	return p
}

func (p *memoryPipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.readClosed:
			return 0, net.ErrClosed
		case p.readBy.passed:
			return 0, os.ErrDeadlineExceeded
		case p.failed != nil:
			return 0, p.failed
		case len(b) == 0:
			return 0, nil
		case p.length > 0 && !p.stalled:
			n := p.take(b)
			p.writers.Broadcast()
			return n, nil
		case p.writeClosed && !p.stalled:
			return 0, io.EOF
		}
		p.readers.Wait()
	}
}

func (p *memoryPipe) write(b []byte) (written int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.writeClosed:
			return written, net.ErrClosed
		case p.writeBy.passed:
			return written, os.ErrDeadlineExceeded
		case p.failed != nil:
			return written, p.failed
		case p.readClosed && !p.stalled:
			return written, errReset
		case len(b) == written:
			return written, nil
		case p.length < memoryBuffer:
			written += p.put(b[written:])
			p.readers.Broadcast()
			continue
		}
		p.writers.Wait()
	}
}

// take moves bytes out of the ring.
func (p *memoryPipe) take(b []byte) int {
	n := copy(b, p.ring[p.start:min(p.start+p.length, len(p.ring))])
	n += copy(b[n:], p.ring[:max(0, min(p.length-n, p.start))])
	p.length -= n
	p.start += n
	if p.start >= len(p.ring) {
		p.start -= len(p.ring)
	}
	if p.length == 0 {
		p.start = 0
	}
	return n
}

// put moves bytes into the ring, which grows up to memoryBuffer.
func (p *memoryPipe) put(b []byte) int {
	p.grow(min(p.length+len(b), memoryBuffer))
	end := p.start + p.length
	n := 0
	if end < len(p.ring) {
		n = copy(p.ring[end:], b)
		end = 0
	} else {
		end -= len(p.ring)
	}
	n += copy(p.ring[end:p.start], b[n:])
	p.length += n
	return n
}

func (p *memoryPipe) grow(need int) {
	if need <= len(p.ring) {
		return
	}
	size := max(4<<10, len(p.ring))
	for size < need {
		size *= 2
	}
	ring := make([]byte, size)
	length := p.length
	p.take(ring)
	p.ring, p.start, p.length = ring, 0, length
}

func (p *memoryPipe) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.readers.Broadcast()
	p.writers.Broadcast()
}

func (p *memoryPipe) stall(stalled bool) { p.change(func() { p.stalled = stalled }) }
func (p *memoryPipe) fail(err error)     { p.change(func() { p.failed = err }) }
func (p *memoryPipe) closeWrite()        { p.change(func() { p.writeClosed = true }) }
func (p *memoryPipe) closeRead()         { p.change(func() { p.readClosed = true }) }

// deadline is a time from which on reads or writes of a pipe fail. Its fields are guarded by the pipe's lock.
type deadline struct {
	timer  *time.Timer
	passed bool
	serial uint64 // tells a timer that fires late from the one that is set
}

func (d *deadline) set(p *memoryPipe, t time.Time) {
	p.change(func() {
		if d.timer != nil {
			d.timer.Stop()
			d.timer = nil
		}
		d.serial++
		d.passed = false
		if t.IsZero() {
			return
		}
		wait := time.Until(t)
		if wait <= 0 {
			d.passed = true
			return
		}
		serial := d.serial
		d.timer = time.AfterFunc(wait, func() {
			p.change(func() { d.passed = d.passed || d.serial == serial })
		})
	})
}
