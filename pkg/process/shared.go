package process

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/wiggle-run/wiggle/pkg/lifecycle"
	"github.com/wiggle-run/wiggle/pkg/settings"
)

// SettingRouterURLs names the setting by which services find the routers.
const SettingRouterURLs = "WIGGLE_ROUTER_URLS"

// DeclareRouterURLs declares the setting by which services find the routers, for each that calls them.
func DeclareRouterURLs(r *settings.Registry, target *[]string) {
	r.Strings(target, SettingRouterURLs, nil, "URLs of the routers, for the services that call them.",
		settings.Example("http://10.0.0.4:8420,http://10.0.0.5:8420"))
}

// DeclareGrace declares how long a service may take to finish what is in flight, 20 s, for each that has calls in flight.
func DeclareGrace(r *settings.Registry, target *time.Duration) {
	r.Duration(target, "WIGGLE_GRACE", lifecycle.DefaultGrace,
		"How long a process may take to finish what is in flight when it is stopped.",
		settings.Within(time.Millisecond, 10*time.Minute))
}

const (
	schemaApply  = "apply"
	schemaVerify = "verify"
)

// DeclareSchemaMode declares whether a service only verifies its schemas, for each that has some.
func DeclareSchemaMode(r *settings.Registry, verify *bool) {
	var mode string
	r.String(&mode, "WIGGLE_SCHEMA_MODE", schemaApply,
		"Whether a process applies pending migrations when it starts, or only verifies that there are none.",
		settings.OneOf(schemaApply, schemaVerify))
	r.Check(func() error {
		*verify = mode == schemaVerify
		return nil
	})
}

// CheckURLs says which of a setting's URLs are not http or https URLs of a host, or hold a user or a password: services know each
// other otherwise, and the log has the settings. What may hold one is not repeated.
func CheckURLs(setting string, urls ...string) []Problem {
	var found []Problem
	for _, configured := range urls {
		u, err := url.Parse(configured)
		switch wrong := err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https"; {
		case wrong && strings.Contains(configured, "@"):
			found = append(found, Problem{setting, "has an entry with an @ in it that is not an http or https URL"})
		case wrong:
			found = append(found, Problem{setting, fmt.Sprintf("names %q, which is not an http or https URL", configured)})
		case u.User != nil:
			found = append(found, Problem{setting, fmt.Sprintf("names %s://%s with a user or a password in front of it: leave them out;"+
				" services know each other by %s", u.Scheme, u.Host, SettingServiceKey)})
		}
	}
	return found
}
