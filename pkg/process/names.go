package process

import "github.com/wiggle-run/wiggle/pkg/settings"

// SettingRouterURLs names the setting by which services find the routers.
const SettingRouterURLs = "WIGGLE_ROUTER_URLS"

// DeclareRouterURLs declares the setting by which services find the routers, for each that calls them.
func DeclareRouterURLs(r *settings.Registry, target *[]string) {
	r.Strings(target, SettingRouterURLs, nil, "URLs of the routers, for the services that call them.",
		settings.Example("http://10.0.0.4:8420,http://10.0.0.5:8420"))
}

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
		leader      = "leader"
		router      = "router"
		search      = "search"
	)
	by := func(services ...string) []string { return services }
	return []Name{
		{"WIGGLE_DATABASE_URL", by(all)},
		{"WIGGLE_EVENTS_HARD_CAP", by(instances)},
		{"WIGGLE_EVENTS_RETENTION", by(instances)},
		{"WIGGLE_GRACE", by(router, instances, leader, search)},
		{"WIGGLE_INSTANCES_ADDR", by(instances)},
		{"WIGGLE_INSTANCES_BATCH", by(instances)},
		{"WIGGLE_INSTANCES_LANES", by(instances)},
		{"WIGGLE_INSTANCES_SHARDS", by(instances)},
		{"WIGGLE_INSTANCES_URLS", by(router)},
		{"WIGGLE_LEADER_ADDR", by(leader)},
		{"WIGGLE_LEADER_URLS", by(router)},
		{"WIGGLE_LIMIT_BRANCHES", by(instances)},
		{"WIGGLE_LIMIT_COMBINE_BYTES", by(instances)},
		{"WIGGLE_LIMIT_DEFINITION_BYTES", by(instances)},
		{"WIGGLE_LIMIT_EVENT_BYTES", by(instances)},
		{"WIGGLE_LIMIT_HISTORY_BYTES", by(instances)},
		{"WIGGLE_LIMIT_NESTING", by(instances)},
		{"WIGGLE_LIMIT_NODES", by(instances)},
		{"WIGGLE_LIMIT_PAYLOAD_BYTES", by(router, instances)},
		{"WIGGLE_LOG_FORMAT", by(all)},
		{"WIGGLE_LOG_LEVEL", by(all)},
		{"WIGGLE_MAX_REPLICA_LAG_MILLIS", by(all)},
		{settingMetricsAddr, by(all)},
		{"WIGGLE_NATS_CREDENTIALS", by(leader, search)},
		{"WIGGLE_NATS_URLS", by(leader, search)},
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
		{"WIGGLE_SCHEMA_MODE", by(instances, leader, search)},
		{"WIGGLE_SEARCH_ADDR", by(search)},
		{"WIGGLE_SEARCH_LANGUAGE", by(search)},
		{"WIGGLE_SEARCH_URLS", by(router)},
		{"WIGGLE_SERVER", by(commandLine)},
		{"WIGGLE_STORAGE_TOPOLOGY", by(all)},
		{"WIGGLE_ZONE", by(instances)},
	}
}
