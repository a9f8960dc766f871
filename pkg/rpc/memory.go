package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
)

// Partition says what becomes of a connection between two names of a [MemoryNetwork].
type Partition int

const (
	// Healed: connections work.
	Healed Partition = iota
	// Lost: nothing arrives any more and dialling waits for its context, as when packets are dropped. What was sent
	// arrives after healing.
	Lost
	// Refused: connections are cut and dialling fails at once, as when a host is up and its process is not.
	Refused
)

// AnyName matches every name in [MemoryNetwork.Partition].
const AnyName = "*"

// errReset is what both ends of a cut connection get.
var errReset error = &net.OpError{Op: "read", Net: "memory", Err: os.NewSyscallError("read", syscall.ECONNRESET)}

// MemoryNetwork connects servers and clients within one process by names, such as "instances-0.mem" for the URL
// "http://instances-0.mem". It offers what a network offers, and the failures of one for tests. It is safe for
// concurrent use; it starts no goroutines.
type MemoryNetwork struct {
	mu        sync.Mutex
	changed   chan struct{} // closed and replaced when a listener or partition changes
	listeners map[string]*memoryListener
	rules     map[route]Partition
	conns     map[*memoryLink]struct{}
}

type route struct{ from, to string }

// NewMemoryNetwork returns a network without servers.
func NewMemoryNetwork() *MemoryNetwork {
	return &MemoryNetwork{
		changed:   make(chan struct{}),
		listeners: map[string]*memoryListener{},
		rules:     map[route]Partition{},
		conns:     map[*memoryLink]struct{}{},
	}
}

// Listen takes the name until the listener is closed. A name that is taken is refused, as a port would be.
func (n *MemoryNetwork) Listen(name string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, taken := n.listeners[name]; taken {
		return nil, fmt.Errorf("listen on %s: %w", name, syscall.EADDRINUSE)
	}
	l := &memoryListener{network: n, name: name, backlog: make(chan net.Conn), closed: make(chan struct{})}
	n.listeners[name] = l
	n.wake()
	return l, nil
}

// URL returns the base URL of a name.
func (n *MemoryNetwork) URL(name string) string { return "http://" + name }

// DialContext connects to a name, whatever the port: it fits http.Transport and [ClientConfig].
func (n *MemoryNetwork) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	return n.dial(ctx, "client", address)
}

// DialerFrom returns a DialContext whose connections come from a name, so that [MemoryNetwork.Partition] can tell them
// from others.
func (n *MemoryNetwork) DialerFrom(
	from string,
) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, _, address string) (net.Conn, error) { return n.dial(ctx, from, address) }
}

// Partition sets what becomes of connections that from opens, or has opened, to to. Either may be [AnyName]; of two
// rules that match, the one that is worse for the connection counts.
func (n *MemoryNetwork) Partition(from, to string, how Partition) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if how == Healed {
		delete(n.rules, route{from, to})
	} else {
		n.rules[route{from, to}] = how
	}
	n.wake()
	for link := range n.conns {
		n.apply(link)
	}
}

// Heal ends all partitions.
func (n *MemoryNetwork) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.rules)
	n.wake()
	for link := range n.conns {
		n.apply(link)
	}
}

// apply makes a link feel the rules. It is called with the lock held.
func (n *MemoryNetwork) apply(link *memoryLink) {
	switch n.rule(link.route) {
	case Refused:
		link.reset()
	case Lost:
		link.stall(true)
	case Healed:
		link.stall(false)
	}
}

// rule returns the worst rule for a route. It is called with the lock held.
func (n *MemoryNetwork) rule(r route) Partition {
	return max(n.rules[r], n.rules[route{AnyName, r.to}], n.rules[route{r.from, AnyName}],
		n.rules[route{AnyName, AnyName}])
}

// wake lets dials look again. It is called with the lock held.
func (n *MemoryNetwork) wake() {
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *MemoryNetwork) dial(ctx context.Context, from, address string) (net.Conn, error) {
	to := address
	if host, _, err := net.SplitHostPort(address); err == nil {
		to = host
	}
	for {
		n.mu.Lock()
		listener, rule, changed := n.listeners[to], n.rule(route{from, to}), n.changed
		n.mu.Unlock()
		if rule == Lost {
			select {
			case <-ctx.Done():
				return nil, dialError(to, ctx.Err())
			case <-changed:
				continue
			}
		}
		if rule == Refused || listener == nil {
			return nil, dialError(to, syscall.ECONNREFUSED)
		}
		conn, err := n.connect(ctx, from, listener, changed)
		if !errors.Is(err, errAgain) {
			return conn, err
		}
	}
}

// errAgain asks dial to look at the rules again.
var errAgain = errors.New("the network changed")

// connect hands one end of a new link to the listener.
func (n *MemoryNetwork) connect(
	ctx context.Context, from string, listener *memoryListener, changed chan struct{},
) (net.Conn, error) {
	link, near, far := newMemoryLink(n, route{from, listener.name})
	select {
	case listener.backlog <- far:
	case <-listener.closed:
		return nil, dialError(listener.name, syscall.ECONNREFUSED)
	case <-changed:
		return nil, errAgain
	case <-ctx.Done():
		return nil, dialError(listener.name, ctx.Err())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[link] = struct{}{}
	n.apply(link)
	return near, nil
}

func (n *MemoryNetwork) forget(link *memoryLink) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, link)
}

func dialError(to string, err error) error {
	return &net.OpError{Op: "dial", Net: "memory", Addr: memoryAddr(to), Err: err}
}

// memoryListener is one server's place in the network.
type memoryListener struct {
	network *MemoryNetwork
	name    string
	backlog chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.backlog:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.network.mu.Lock()
		defer l.network.mu.Unlock()
		delete(l.network.listeners, l.name)
		l.network.wake()
	})
	return nil
}

func (l *memoryListener) Addr() net.Addr { return memoryAddr(l.name) }

type memoryAddr string

func (memoryAddr) Network() string  { return "memory" }
func (a memoryAddr) String() string { return string(a) }
