// Package settings is the one way in which processes are configured: by environment variables named WIGGLE_* (OPS-2).
//
// Each service declares its settings in its config.go on a [Registry] that the process hands to it, as one declares
// flags: a place for the value, a name, a default, a sentence. [Registry.Load] then reads the environment and reports
// everything that is wrong at once: values that do not parse or are out of range, settings that are missing, and names
// beginning with WIGGLE_ that nobody declared, with the name that was probably meant. The same declarations make the
// table in the documentation ([Registry.Table], [Markdown]).
//
//	func (c *Config) Declare(r *settings.Registry) {
//		r.String(&c.Listen, "WIGGLE_ROUTER_LISTEN", ":8080", "Address and port to listen on.")
//		r.Duration(&c.AuthCache, "WIGGLE_AUTH_CACHE_MILLIS", 30*time.Second, "How long a principal is trusted unasked.")
//	}
//
// Numbers carry their unit at the end of their name: a duration whose name ends in _MILLIS or _SECONDS is a whole number
// of those, any other is written as 90s, 15m, 36h or 7d; sizes end in _BYTES and may be written as 2MiB. A variable that
// is set to nothing is not set. Registries hold all state; the package has none.
package settings
