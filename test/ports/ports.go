// Package ports finds ports for servers that go away and come back on the same one.
package ports

import (
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
)

// Ports are taken from below what systems give to outgoing connections, which
// could take the port of a process while it is down.
const (
	firstPort = 21_000
	lastPort  = 31_000
	portTries = 1_000
)

// Free finds n ports on 127.0.0.1 that are free now.
func Free(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range portTries {
		if len(ports) == n {
			return ports, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort)            //nolint:gosec // no secret
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)) //nolint:noctx // local
		if err != nil || slices.Contains(ports, port) {
			continue
		}
		_ = l.Close()
		ports = append(ports, port)
	}
	return nil, errors.New("no free ports on 127.0.0.1")
}
