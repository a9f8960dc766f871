package auth

import (
	_ "github.com/jackc/pgx/v5"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "testing"
)
