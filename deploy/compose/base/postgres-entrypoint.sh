#!/bin/sh
# The entry point of the PostgreSQL image that base-images makes. It does what compose.yaml needs of the public image's: makes the data
# directory for POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB, and runs /docker-entrypoint-initdb.d once.
set -eu

if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
	chmod 0700 "$PGDATA"
	secret=/var/run/postgresql/.password
	(umask 077 && printf '%s\n' "$POSTGRES_PASSWORD" >"$secret")
	initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" --pwfile="$secret" --encoding=UTF8 --locale=C.UTF-8 \
		--auth-local=trust --auth-host=scram-sha-256
	rm "$secret"
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
	pg_ctl --pgdata="$PGDATA" --options="-c listen_addresses=''" --wait start
	createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
	for script in /docker-entrypoint-initdb.d/*.sh; do
		if [ -f "$script" ]; then sh "$script"; fi
	done
	pg_ctl --pgdata="$PGDATA" --mode=fast --wait stop
fi
exec "$@"
