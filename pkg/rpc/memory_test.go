package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"github.com/wiggle-run/wiggle/pkg/rpc"
)

func pair(t *testing.T, network *rpc.MemoryNetwork, name string) (client, server net.Conn) {
	t.Helper()
	listener, err := network.Listen(name)
	must(t, err)
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			close(accepted)
			return
		}
		accepted <- conn
	}()
	client, err = network.DialerFrom("router")(t.Context(), "tcp", name+":80")
	must(t, err)
	server = <-accepted
	must(t, listener.Close())
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

// The standard suite for connections: deadlines, concurrency, closing.
func TestMemoryConnIsANetConn(t *testing.T) {
	t.Parallel()
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		c1, c2 = pair(t, rpc.NewMemoryNetwork(), "a.mem")
		return c1, c2, func() { _, _ = c1.Close(), c2.Close() }, nil
	})
}

func TestMemoryConnKeepsBytesInOrder(t *testing.T) {
	t.Parallel()
	client, server := pair(t, rpc.NewMemoryNetwork(), "a.mem")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	sent := make([]byte, 2<<20)
	for i := range sent {
		sent[i] = byte(random.Uint32())
	}
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(100_000))
			if _, err := client.Write(rest[:n]); err != nil {
				t.Error(err)
			}
			rest = rest[n:]
		}
		_ = client.Close()
	}()
	var got bytes.Buffer
	chunk := make([]byte, 3000)
	for {
		n, err := server.Read(chunk)
		got.Write(chunk[:n])
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
	}
	if !bytes.Equal(got.Bytes(), sent) {
		t.Errorf("%d bytes came as %d others", len(sent), got.Len())
	}
}

func TestPartitionThatLoses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := rpc.NewMemoryNetwork()
		client, server := pair(t, network, "a.mem")
		network.Partition("router", "a.mem", rpc.Lost)
		_, err := client.Write([]byte("late"))
		must(t, err)
		must(t, server.SetReadDeadline(time.Now().Add(time.Hour)))
		if _, err := server.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := network.DialerFrom("router")(ctx, "tcp", "a.mem"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		network.Heal()
		must(t, server.SetReadDeadline(time.Time{}))
		got := make([]byte, 4)
		_, err = io.ReadFull(server, got)
		must(t, err)
		if string(got) != "late" {
			t.Errorf("got %q", got)
		}
	})
}

func TestPartitionHealsAfterOneEndClosed(t *testing.T) {
	t.Parallel()
	network := rpc.NewMemoryNetwork()
	client, server := pair(t, network, "a.mem")
	network.Partition(rpc.AnyName, "a.mem", rpc.Lost)
	must(t, client.Close())
	network.Heal()
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

func TestPartitionThatRefuses(t *testing.T) {
	t.Parallel()
	network := rpc.NewMemoryNetwork()
	client, server := pair(t, network, "a.mem")
	network.Partition("router", rpc.AnyName, rpc.Refused)
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v", err)
	}
	if _, err := server.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v", err)
	}
	if _, err := network.DialerFrom("router")(t.Context(), "tcp", "a.mem"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	network := rpc.NewMemoryNetwork()
	listener, err := network.Listen("a.mem")
	must(t, err)
	if _, err := network.Listen("a.mem"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v", err)
	}
	must(t, listener.Close())
	must(t, listener.Close())
	if _, err := network.DialContext(t.Context(), "tcp", "a.mem:80"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
	if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
