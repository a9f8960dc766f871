// Package router is a service.
package router

import (
	_ "github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/wiggle-run/wiggle/internal/app"
	_ "github.com/wiggle-run/wiggle/pkg/faults"
	_ "github.com/wiggle-run/wiggle/services/auth"
	_ "github.com/wiggle-run/wiggle/services/router/internal/mux"
)
