// Package auth embeds what it should reach over the network.
package auth

import (
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/nats-io/nats.go"
)
