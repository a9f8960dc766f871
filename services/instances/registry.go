package instances

import (
	"context"

	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/homestore"
)

// Registry reads from the home shard's database which shards the cluster has ever had, and in which state (SHD-13), for
// those who check a topology without serving it. A database that no process has opened yet has none.
func Registry(ctx context.Context, home *postgres.Pool) ([]topology.RegistryEntry, error) {
	return homestore.Registry(ctx, home)
}
