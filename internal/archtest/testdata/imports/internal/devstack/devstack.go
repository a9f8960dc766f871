// Package devstack embeds servers.
package devstack

import (
	_ "github.com/fergusstrange/embedded-postgres"
	_ "github.com/jackc/pgx/v5"
	_ "github.com/nats-io/nats-server/v2/server"
)
