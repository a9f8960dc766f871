package rpc

import (
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/wiggle-run/wiggle/pkg/faults"
)

const (
	defaultMaxCalls       = 40_000
	defaultMaxCallBytes   = 256 << 20
	defaultMaxConnections = 10_000
	// overloadPause is when a caller that is refused should come back, spread over twice that.
	overloadPause = 500 * time.Millisecond
)

// load bounds what a server has in hand, whatever clients do: calls under way, and the bytes of their requests (WRK-15). What is
// beyond that is refused with RESOURCE_EXHAUSTED and a pause. Procedures that only make more work are refused from half of each
// bound on, so that what belongs to work under way still gets in.
type load struct {
	maxCalls, maxBytes int64
	yielding           map[string]bool
	exempt             []string        // prefixes of paths
	streams            map[string]bool // procedures whose requests are streams: their bytes come and go
	refuse             func(procedure string) error
	refusals           *connect.ErrorWriter

	calls, bytes atomic.Int64
}

func newLoad(cfg *ServerConfig) *load {
	l := &load{
		maxCalls: int64(cfg.MaxCalls), maxBytes: int64(cfg.MaxCallBytes),
		yielding: map[string]bool{}, streams: map[string]bool{}, refusals: connect.NewErrorWriter(),
		refuse: cfg.Refuse, exempt: []string{"/" + grpchealth.HealthV1ServiceName + "/"},
	}
	for _, service := range cfg.Exempt {
		l.exempt = append(l.exempt, "/"+service+"/")
	}
	for _, procedure := range cfg.Yielding {
		l.yielding[procedure] = true
	}
	return l
}

// know finds out which procedures of a service take streams.
func (l *load) know(service string) {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return // not a service of ours: each request is a message
	}
	if s, ok := d.(protoreflect.ServiceDescriptor); ok {
		for i := range s.Methods().Len() {
			if m := s.Methods().Get(i); m.IsStreamingClient() {
				l.streams["/"+service+"/"+string(m.Name())] = true
			}
		}
	}
}

// wrap refuses calls that are too many.
func (l *load) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls := l.calls.Add(1)
		defer l.calls.Add(-1)
		if r.Method != http.MethodPost || l.isExempt(r.URL.Path) { // a GET is for health, readiness or a file
			next.ServeHTTP(w, r)
			return
		}
		part := int64(1)
		if l.yielding[r.URL.Path] {
			part = 2
		}
		if calls > l.maxCalls/part || l.bytes.Load() > l.maxBytes/part {
			l.answer(w, r, l.refusal())
			return
		}
		if l.refuse != nil {
			if err := l.refuse(r.URL.Path); err != nil {
				l.answer(w, r, ToConnect(err))
				return
			}
		}
		if !l.streams[r.URL.Path] {
			body := &countedBody{ReadCloser: r.Body, load: l, most: l.maxBytes}
			defer body.release()
			body.hold(compressedBytes(r))
			r.Body = body
		}
		next.ServeHTTP(w, r)
	})
}

// answer refuses a call whose request has not been read.
func (l *load) answer(w http.ResponseWriter, r *http.Request, err *connect.Error) {
	_ = l.refusals.Write(w, r, err) // the peer is gone, and nobody is left to tell
}

func (l *load) isExempt(path string) bool {
	return slices.ContainsFunc(l.exempt, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}

func (l *load) refusal() *connect.Error {
	pause := overloadPause + time.Duration(rand.Int64N(int64(2*overloadPause))) //nolint:gosec // jitter
	return ToConnect(faults.Overloaded(pause, "the service has more calls in hand than it takes; try again later"))
}

// unpacked is what a request that is compressed counts for before it is read: nobody knows what it becomes.
const unpacked = 1 << 20

func compressedBytes(r *http.Request) int64 {
	for _, name := range []string{"Content-Encoding", "Grpc-Encoding"} {
		if v := r.Header.Get(name); v != "" && !strings.EqualFold(v, "identity") {
			return unpacked
		}
	}
	return 0
}

// countedBody counts the bytes of a request until it is answered. It belongs to one goroutine.
type countedBody struct {
	io.ReadCloser

	load       *load
	held, most int64
}

// Read reads unless requests hold too many bytes.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.hold(int64(n)) > b.most {
		return 0, b.load.refusal()
	}
	return n, err
}

// hold takes bytes and tells how many all requests hold.
func (b *countedBody) hold(n int64) int64 {
	b.held += n
	return b.load.bytes.Add(n)
}

func (b *countedBody) release() { b.load.bytes.Add(-b.held) }
