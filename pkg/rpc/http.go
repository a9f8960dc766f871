package rpc

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"

	connectcors "connectrpc.com/cors"
	"github.com/rs/cors"
)

// corsMaxAge is how long, in seconds, browsers keep what a preflight answered; they allow two hours at most.
const corsMaxAge = 7200

// readiness is what /readyz answers.
type readiness struct {
	Ready    bool     `json:"ready"`
	Draining bool     `json:"draining,omitempty"`
	Missing  []string `json:"missing,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// healthz tells that the process runs.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{"alive": true, "release": s.cfg.Release})
}

// readyz tells whether the process can serve, and what is missing if not.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	var state readiness
	select {
	case <-s.draining:
		state.Draining = true
	default:
	}
	if s.cfg.Shards != nil {
		state.Missing = s.missingShards()
	}
	if s.cfg.Ready != nil {
		ctx, cancel := context.WithTimeout(r.Context(), defaultMaxReadyChecks)
		defer cancel()
		state.Missing = append(state.Missing, s.cfg.Ready(ctx)...)
	}
	if s.cfg.Warnings != nil {
		state.Warnings = s.cfg.Warnings()
	}
	state.Ready = !state.Draining && len(state.Missing) == 0
	status := http.StatusOK
	if !state.Ready {
		status = http.StatusServiceUnavailable
	}
	answer(w, status, state)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the peer is gone, and nobody is left to tell
}

// withCORS lets pages of other origins call. Without origins it changes nothing, and browsers refuse.
func withCORS(origins []string, next http.Handler) http.Handler {
	if len(origins) == 0 {
		return next
	}
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: connectcors.AllowedMethods(),
		AllowedHeaders: slices.Concat(connectcors.AllowedHeaders(),
			[]string{"Authorization", "Traceparent", "Tracestate", "Baggage", ReleaseHeader}),
		ExposedHeaders: slices.Concat(connectcors.ExposedHeaders(), []string{ReleaseHeader, "Retry-After"}),
		MaxAge:         corsMaxAge,
	}).Handler(next)
}
