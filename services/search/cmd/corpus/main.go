// Command corpus fills an empty database with documents as a busy cluster would have them, unless it is filled already, and
// measures what searches cost on them. It prints one JSON object, and a table on standard error.
//
//	go run ./services/search/cmd/corpus -url postgres://localhost/corpus -documents 1000000
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/services/search/internal/corpus"
	"github.com/wiggle-run/wiggle/services/search/internal/index"
	"github.com/wiggle-run/wiggle/services/search/internal/query"
	"github.com/wiggle-run/wiggle/services/search/internal/searchstore"
	"github.com/wiggle-run/wiggle/services/search/migrations"
)

// options are the command's.
type options struct {
	url, language            string
	documents, each, clients int
	seed                     uint64
}

func main() {
	var o options
	flag.StringVar(&o.url, "url", "", "connection string of the database")
	flag.StringVar(&o.language, "language", "simple", "text search configuration")
	flag.IntVar(&o.documents, "documents", 1_000_000, "how many documents to fill in")
	flag.IntVar(&o.each, "searches", 200, "how many searches of each kind to make")
	flag.IntVar(&o.clients, "clients", 1, "how many searches to make at the same time")
	flag.Uint64Var(&o.seed, "seed", 1, "what the documents are drawn by")
	flag.Parse()
	ctx, stop := lifecycle.WithSignals(context.Background())
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "corpus:", postgres.Detail(err))
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.url == "" {
		return errors.New("say which database with -url")
	}
	cfg := postgres.MemberConfig{Name: "corpus", URL: o.url}
	searchstore.Configure(&cfg)
	pool, err := postgres.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := postgres.Migrate(ctx, pool, migrations.Set(), postgres.Apply); err != nil {
		return err
	}
	store := searchstore.New(pool, o.language)
	docs := corpus.New(o.seed, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	began := time.Now()
	err = store.Fill(ctx, o.documents, docs.Document, func(done int) {
		fmt.Fprintf(os.Stderr, "%8.1f s  %d of %d documents\n", time.Since(began).Seconds(), done, o.documents)
	})
	if err != nil && !errors.Is(err, searchstore.ErrNotEmpty) {
		return err
	}
	fmt.Fprintf(os.Stderr, "%8.1f s  filled\n", time.Since(began).Seconds())
	x, err := index.New([]*index.Shard{{Store: store, Ready: func() bool { return true }}})
	if err != nil {
		return err
	}
	searcher := query.New(x.Shards, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	searches := docs.Searches(o.documents, o.each)
	if _, err := corpus.Measure(ctx, searcher, searches[:min(len(searches), 300)], o.clients); err != nil { // to warm up
		return err
	}
	report, err := corpus.Measure(ctx, searcher, searches, o.clients)
	if err != nil {
		return err
	}
	fmt.Fprint(os.Stderr, report)
	return json.NewEncoder(os.Stdout).Encode(report)
}
