// Package state keeps what should be handed in.
package state

import (
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
)

var (
	logger = slog.Default()
	meter  = otel.Meter("state")
	starts prometheus.Counter
	byName struct{ sync.Map }

	level  = slog.LevelInfo
	once   = sync.OnceValue(func() int { return 1 })
	report = func(log *slog.Logger) { log.Info("handed in") }
)

func init() { logger.Info("imported") }

type server struct{}

func (server) init() {}

func use() { _ = slog.Default(); var mu sync.Mutex; mu.Lock() }
