package postgres

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitUnacked sets TCP_USER_TIMEOUT. A kernel that refuses it only loses the quicker detection.
func limitUnacked(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout.Milliseconds()))
	})
}
