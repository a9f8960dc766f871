package postgres

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// ShardMigrations is the schema that every shard has whatever its roles: the row that [Claim] reads and writes.
func ShardMigrations() MigrationSet {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		panic(err) // the path is a constant
	}
	return MigrationSet{Role: "shard", FS: sub}
}

// ClaimError says that a database belongs to another shard or cluster than the one it was opened as.
type ClaimError struct {
	// WantShard and WantCluster are what the caller takes the database for; WantCluster is empty if it did not say.
	WantShard   int
	WantCluster string
	// HasShard and HasCluster are what the database says it is.
	HasShard   int
	HasCluster string
}

// Error names what differs.
func (e *ClaimError) Error() string {
	if e.HasShard != e.WantShard {
		return fmt.Sprintf("database configured for shard %d belongs to shard %d of cluster %s", e.WantShard, e.HasShard, e.HasCluster)
	}
	return fmt.Sprintf("database of shard %d belongs to cluster %s, not to cluster %s", e.WantShard, e.HasCluster, e.WantCluster)
}

// NewClusterID mints the id of a new cluster: 26 lower-case letters and digits at random.
func NewClusterID() string { return strings.ToLower(rand.Text()) }

// Claim makes the database that of a shard, or verifies that it is, and returns the cluster's id.
//
// The first caller writes the row, all others compare. An empty clusterID means that the caller does not know it: then an
// unclaimed database is given a new cluster id, and a claimed one tells its own. Call it so for the home shard first, and
// with the answer for all other shards. [ShardMigrations] must have been applied. Errors: [ClaimError], or a storage error.
func Claim(ctx context.Context, pool *Pool, shardID int, clusterID string) (string, error) {
	var has ClaimError
	err := pool.InTx(ctx, TxOptions{Op: "claim shard"}, func(ctx context.Context, tx pgx.Tx) error {
		mint := clusterID
		if mint == "" {
			mint = NewClusterID()
		}
		// The key of the one row is the lock: a second claimer waits for the first and then does nothing.
		_, err := tx.Exec(ctx, "insert into wiggle_shard (shard_id, cluster_id) values ($1, $2) on conflict do nothing", shardID, mint)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, "select shard_id, cluster_id from wiggle_shard").Scan(&has.HasShard, &has.HasCluster)
	})
	return checkClaim(has, err, shardID, clusterID)
}

// VerifyClaim is [Claim] without ever writing, for replicas and for WIGGLE_SCHEMA_MODE=verify. A database that nobody has
// claimed is [ErrUnclaimed].
func VerifyClaim(ctx context.Context, pool *Pool, shardID int, clusterID string) (string, error) {
	var has ClaimError
	err := pool.QueryRow(ctx, "select shard_id, cluster_id from wiggle_shard").Scan(&has.HasShard, &has.HasCluster)
	if errors.Is(err, pgx.ErrNoRows) || IsUndefinedTable(err) {
		return "", ErrUnclaimed
	}
	return checkClaim(has, err, shardID, clusterID)
}

// ErrUnclaimed says that a database belongs to no shard yet.
var ErrUnclaimed = errors.New("database is not claimed by any shard")

func checkClaim(has ClaimError, err error, shardID int, clusterID string) (string, error) {
	if err != nil {
		return "", fmt.Errorf("claim database for shard %d: %w", shardID, err)
	}
	if has.HasShard != shardID || (clusterID != "" && has.HasCluster != clusterID) {
		has.WantShard, has.WantCluster = shardID, clusterID
		return "", &has
	}
	return has.HasCluster, nil
}
