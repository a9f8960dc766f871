module github.com/wiggle-run/wiggle/test

go 1.26.0

replace (
	github.com/wiggle-run/wiggle => ../
	github.com/wiggle-run/wiggle/proto => ../proto
	github.com/wiggle-run/wiggle/sdk/go => ../sdk/go
)

require (
	connectrpc.com/connect v1.21.1 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/pgx/v5 v5.13.0 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
