package process

// Name is a setting that exists, and whose it is.
type Name struct {
	// Name is the variable.
	Name string
	// ReadBy are the services that read it; "all" for every process, "dev" and "command line" for what is no service.
	ReadBy []string
}

// Names lists every setting there is, by name. Services cannot know each other, and yet share an environment: by this
// table each accepts the others' names. A test of internal/app holds it against what the services declare.
func Names() []Name {
	const (
		all         = "all"
		commandLine = "command line"
		dev         = "dev"
		instances   = "instances"
		router      = "router"
	)
	by := func(services ...string) []string { return services }
	return []Name{
		{"WIGGLE_DATABASE_URL", by(all)},
		{"WIGGLE_GRACE", by(router, instances)},
		{"WIGGLE_INSTANCES_ADDR", by(instances)},
		{"WIGGLE_INSTANCES_BATCH", by(instances)},
		{"WIGGLE_INSTANCES_LANES", by(instances)},
		{"WIGGLE_INSTANCES_SHARDS", by(instances)},
		{"WIGGLE_INSTANCES_URLS", by(router)},
		{"WIGGLE_LIMIT_BRANCHES", by(instances)},
		{"WIGGLE_LIMIT_COMBINE_BYTES", by(instances)},
		{"WIGGLE_LIMIT_DEFINITION_BYTES", by(instances)},
		{"WIGGLE_LIMIT_HISTORY_BYTES", by(instances)},
		{"WIGGLE_LIMIT_NESTING", by(instances)},
		{"WIGGLE_LIMIT_NODES", by(instances)},
		{"WIGGLE_LIMIT_PAYLOAD_BYTES", by(router, instances)},
		{"WIGGLE_LOG_FORMAT", by(all)},
		{"WIGGLE_LOG_LEVEL", by(all)},
		{"WIGGLE_MAX_REPLICA_LAG_MILLIS", by(all)},
		{settingMetricsAddr, by(all)},
		{"WIGGLE_POSTGRES_BIN", by(dev)},
		{settingPprofAddr, by(all)},
		{"WIGGLE_REPLICA_FALLBACK", by(all)},
		{"WIGGLE_REPLICA_POOL_SIZE", by(all)},
		{"WIGGLE_REPLICA_URLS", by(all)},
		{"WIGGLE_ROUTER_ADDR", by(router)},
		{"WIGGLE_ROUTER_CALL_TIMEOUT", by(router)},
		{"WIGGLE_ROUTER_CONNECTIONS", by(router)},
		{"WIGGLE_ROUTER_CORS_ORIGINS", by(router)},
		{"WIGGLE_ROUTER_FANOUT_TIMEOUT", by(router)},
		{"WIGGLE_ROUTER_MAX_PARKED_POLLS", by(router)},
		{"WIGGLE_ROUTER_POLL_RECHECK", by(router)},
		{"WIGGLE_ROUTER_PROBE_INTERVAL", by(router)},
		{"WIGGLE_ROUTER_PROBE_TIMEOUT", by(router)},
		{"WIGGLE_SCHEMA_MODE", by(instances)},
		{"WIGGLE_SERVER", by(commandLine)},
		{"WIGGLE_STORAGE_TOPOLOGY", by(all)},
	}
}
