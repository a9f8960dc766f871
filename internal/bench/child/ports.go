package child

import "net"

// FreePorts finds ports that are free now.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // local
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		if addr, ok := l.Addr().(*net.TCPAddr); ok {
			ports = append(ports, addr.Port)
		}
	}
	return ports, nil
}
