// Package dial opens sockets.
package dial

import (
	_ "net"
)
