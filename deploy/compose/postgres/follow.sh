#!/bin/sh
# Starts a streaming replica of $PRIMARY_HOST: at first from a copy, later from what it has. The slot keeps for it what it has not got
# yet. What the copy was made with is written to its configuration.
set -eu

if [ ! -s "$PGDATA/PG_VERSION" ]; then
	chmod 0700 "$PGDATA"
	PGPASSWORD=$REPLICATION_PASSWORD pg_basebackup --pgdata="$PGDATA" --host="$PRIMARY_HOST" --username=replicator \
		--write-recovery-conf --slot=replica --wal-method=stream --checkpoint=fast --no-password
fi
exec "$@"
