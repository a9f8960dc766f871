#!/bin/sh
# Runs once, when the data directory of shard 0 is made: the role and the slot by which its replica follows. The password is read from
# the environment, so that it is on no command line.
set -eu

psql --quiet --set=ON_ERROR_STOP=1 --username="$POSTGRES_USER" --dbname="$POSTGRES_DB" <<'SQL'
\getenv password REPLICATION_PASSWORD
create role replicator with replication login password :'password';
select pg_create_physical_replication_slot('replica');
SQL
echo "host replication replicator all scram-sha-256" >>"$PGDATA/pg_hba.conf"
