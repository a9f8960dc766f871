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
func Names() []Name { //nolint:funlen // a table, a line each
	const (
		all         = "all"
		auth        = "auth"
		commandLine = "command line"
		dev         = "dev"
		instances   = "instances"
		leader      = "leader"
		router      = "router"
		search      = "search"
	)
	by := func(services ...string) []string { return services }
	return []Name{
		{"WIGGLE_API_KEY", by(commandLine)},
		{"WIGGLE_API_KEY_FILE", by(commandLine)},
		{SettingAuth, by(all, router)},
		{"WIGGLE_AUTH_ADDR", by(auth)},
		{"WIGGLE_AUTH_ADMIN_NAME", by(auth)},
		{"WIGGLE_AUTH_ADMIN_PASSWORD", by(auth)},
		{"WIGGLE_AUTH_ADMIN_PASSWORD_FILE", by(auth)},
		{"WIGGLE_AUTH_AUDIT_RETENTION", by(auth)},
		{"WIGGLE_AUTH_CACHE_MILLIS", by(router)},
		{"WIGGLE_AUTH_GRACE", by(router)},
		{"WIGGLE_AUTH_SESSION_IDLE", by(auth)},
		{"WIGGLE_AUTH_SESSION_LIFETIME", by(auth)},
		{"WIGGLE_AUTH_URLS", by(router)},
		{"WIGGLE_DATABASE_URL", by(all)},
		{"WIGGLE_EVENTS_HARD_CAP", by(instances)},
		{"WIGGLE_EVENTS_RETENTION", by(instances)},
		{"WIGGLE_GRACE", by(router, instances, leader, search, auth)},
		{"WIGGLE_INSTANCES_ADDR", by(instances)},
		{"WIGGLE_INSTANCES_BATCH", by(instances)},
		{"WIGGLE_INSTANCES_LANES", by(instances)},
		{"WIGGLE_INSTANCES_SHARDS", by(instances)},
		{"WIGGLE_INSTANCES_URLS", by(router)},
		{"WIGGLE_LEADER_ADDR", by(leader)},
		{"WIGGLE_LEADER_URLS", by(router)},
		{"WIGGLE_LIMIT_BRANCHES", by(instances)},
		{settingLimitCall, by(all)},
		{"WIGGLE_LIMIT_COMBINE_BYTES", by(instances)},
		{"WIGGLE_LIMIT_DEFINITION_BYTES", by(instances)},
		{"WIGGLE_LIMIT_EVENT_BYTES", by(instances)},
		{settingLimitHeader, by(all)},
		{"WIGGLE_LIMIT_HISTORY_BYTES", by(instances)},
		{"WIGGLE_LIMIT_NESTING", by(instances)},
		{"WIGGLE_LIMIT_NODES", by(instances)},
		{"WIGGLE_LIMIT_PAYLOAD_BYTES", by(router, instances)},
		{settingLimitStreams, by(all)},
		{"WIGGLE_LOG_FORMAT", by(all)},
		{"WIGGLE_LOG_LEVEL", by(all)},
		{"WIGGLE_MAX_REPLICA_LAG_MILLIS", by(all)},
		{settingMetricsAddr, by(all)},
		{"WIGGLE_NATS_CREDENTIALS", by(router, leader, search, auth)},
		{"WIGGLE_NATS_URLS", by(router, leader, search, auth)},
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
		{SettingRouterURLs, by(leader, search)},
		{"WIGGLE_SCHEMA_MODE", by(instances, leader, search, auth)},
		{"WIGGLE_SEARCH_ADDR", by(search)},
		{"WIGGLE_SEARCH_LANGUAGE", by(search)},
		{"WIGGLE_SEARCH_URLS", by(router)},
		{"WIGGLE_SERVER", by(commandLine)},
		{SettingServiceKey, by(all)},
		{settingServiceKeyFile, by(all)},
		{"WIGGLE_STORAGE_TOPOLOGY", by(all)},
		{settingTLSCA, by(all)},
		{settingTLSCert, by(all)},
		{settingTLSClientCA, by(all)},
		{settingTLSKey, by(all)},
		{"WIGGLE_TRUSTED_PROXIES", by(router)},
		{"WIGGLE_ZONE", by(instances)},
	}
}
