package placement

import (
	_ "net"
)
