package postgres

import (
	"net"
	"time"
)

// A host that vanishes without closing its connections must not hold a call until TCP gives up, which takes many
// minutes: keep-alives find it while we wait for an answer, the user timeout while our bytes are not acknowledged.
const (
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = time.Second
	keepAliveCount    = 4
	unackedTimeout    = 8 * time.Second
)

func newDialer() *net.Dialer {
	return &net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
		},
		Control: limitUnacked,
	}
}
