package auth

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/bus"
	"github.com/wiggle-run/wiggle/pkg/postgres"
	"github.com/wiggle-run/wiggle/pkg/process"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/pkg/topology"
	"github.com/wiggle-run/wiggle/services/auth/internal/password"
	"github.com/wiggle-run/wiggle/services/auth/internal/policy"
)

// Names of settings that messages mention.
const (
	settingAddr         = "WIGGLE_AUTH_ADDR"
	settingAdminName    = "WIGGLE_AUTH_ADMIN_NAME"
	settingAdmin        = "WIGGLE_AUTH_ADMIN_PASSWORD"
	settingAdminFile    = "WIGGLE_AUTH_ADMIN_PASSWORD_FILE"
	settingSessionIdle  = "WIGGLE_AUTH_SESSION_IDLE"
	settingSessionLasts = "WIGGLE_AUTH_SESSION_LIFETIME"
)

// Defaults of what can be set.
const (
	defaultAddr           = "127.0.0.1:8460"
	defaultSessionIdle    = 12 * time.Hour
	defaultSessionLasts   = 7 * 24 * time.Hour
	defaultAuditRetention = 400 * 24 * time.Hour
	// maxPasswordFile bounds the file that holds the first administrator's password.
	maxPasswordFile = 4 << 10
)

// Config says what an auth process works with. Topology and Listener are required; the rest has defaults.
type Config struct {
	// Topology describes the cluster's databases. The shard with the role auth is served.
	Topology *topology.Topology
	// Addr is where a process of its own listens. It makes the Listener of it.
	Addr string
	// Listener is where the services are offered.
	Listener net.Listener
	// Transport is how the services know each other, and what is spoken. Zero: plain text, and nobody is known.
	Transport rpc.Transport
	// NATS is where changes are told, so that caches need not wait for their next look. Without URLs they are not.
	NATS bus.Config
	// SessionIdle ends a session that was not used for so long (0: 12 h), SessionLifetime any (0: 7 days).
	SessionIdle, SessionLifetime time.Duration
	// AuditRetention is how long entries of the audit log are kept. 0: 400 days.
	AuditRetention time.Duration
	// AdminName and AdminPassword are the first administrator's, who is made only if there is none.
	AdminName     string
	AdminPassword settings.Secret
	// AdminPasswordFile holds the password in place of AdminPassword; line ends at its end are left out.
	AdminPasswordFile string
	// SetUp gets the one-time link by which the first administrator is made, at the first start and where AdminName is empty. It
	// is a secret, so it is not logged. Nil: no link is made.
	SetUp io.Writer
	// SchemaVerify applies no migration and refuses a shard that needs one.
	SchemaVerify bool
	// PoolSize is the number of connections to the auth shard. 0: the topology's.
	PoolSize int
	// Grace is how long calls under way may take when the process stops. 0: 20 s.
	Grace time.Duration
	// Release is what the process tells others that it is.
	Release string
	// Logger gets what operators have to know. Nil: nothing is logged.
	Logger *slog.Logger
	// Telemetry is where calls are traced and measured.
	Telemetry rpc.Telemetry

	// passwords are the parameters of new hashes; tests make them small. hashed is called for each that is computed.
	passwords password.Params
	hashed    func()
	// now is the time of tests. Nil: the database's.
	now func() time.Time
}

// Declare declares the settings of an auth service on a registry.
func (c *Config) Declare(r *settings.Registry) {
	r.Section("auth")
	r.String(&c.Addr, settingAddr, defaultAddr, "Address and port where the auth service listens.")
	r.Duration(&c.SessionIdle, settingSessionIdle, defaultSessionIdle, "After how long without use a session ends.",
		settings.Within(5*time.Minute, 365*24*time.Hour))
	r.Duration(&c.SessionLifetime, settingSessionLasts, defaultSessionLasts, "How long a session lasts at most.",
		settings.Within(5*time.Minute, 365*24*time.Hour))
	r.Duration(&c.AuditRetention, "WIGGLE_AUTH_AUDIT_RETENTION", defaultAuditRetention,
		"How long entries of the audit log are kept.", settings.Within(24*time.Hour, 100*365*24*time.Hour))
	r.String(&c.AdminName, settingAdminName, "", "Name of the first administrator, who is made at the start if there is none."+
		" Not set: the first start prints a one-time link by which one is made.", settings.Example("admin"))
	r.Secret(&c.AdminPassword, settingAdmin, "Password of the first administrator. It is read only where one is made.")
	r.String(&c.AdminPasswordFile, settingAdminFile, "", "Path of a file that holds it in its place.",
		settings.Example("/run/secrets/wiggle-admin"))
	c.NATS.Declare(r)
	process.DeclareSchemaMode(r, &c.SchemaVerify)
	process.DeclareGrace(r, &c.Grace)
}

// Check says what is wrong with the settings of an auth service. The topology has no say: it always has an auth shard.
func (c *Config) Check(*topology.Topology) []process.Problem {
	var found []process.Problem
	refuse := func(where, format string, args ...any) {
		found = append(found, process.Problem{Where: where, Message: fmt.Sprintf(format, args...)})
	}
	given := c.AdminPassword != "" || c.AdminPasswordFile != ""
	switch {
	case c.AdminName == "" && given:
		refuse(settingAdminName, "is not set, but the first administrator's password is: set both or neither")
	case c.AdminName != "" && !given:
		refuse(settingAdminName, "is set, but neither %s nor %s is: set one of them", settingAdmin, settingAdminFile)
	case c.AdminPassword != "" && c.AdminPasswordFile != "":
		refuse(settingAdminFile, "is set together with %s: set one of them", settingAdmin)
	}
	if c.AdminName != "" && !policy.ValidName(c.AdminName) {
		refuse(settingAdminName, "is %q, which is no name: it has letters, digits and . _ @ + -, and begins with a letter or digit",
			c.AdminName)
	}
	if given && c.AdminPasswordFile == "" && !policy.ValidPassword(c.AdminPassword.Reveal()) {
		refuse(settingAdmin, "has %d bytes; allowed are %d to %d", len(c.AdminPassword), policy.MinPassword, policy.MaxPassword)
	}
	if c.SessionIdle > c.SessionLifetime && c.SessionLifetime > 0 {
		refuse(settingSessionIdle, "is %s, longer than %s, which is %s", c.SessionIdle, settingSessionLasts, c.SessionLifetime)
	}
	return found
}

func (c *Config) check() error {
	if c.Topology == nil {
		return errors.New("auth: no topology")
	}
	var errs []error
	for _, problem := range c.Check(c.Topology) {
		errs = append(errs, errors.New("auth: "+problem.String()))
	}
	return errors.Join(errs...)
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.SessionIdle, defaultSessionIdle},
		{&c.SessionLifetime, defaultSessionLasts},
		{&c.AuditRetention, defaultAuditRetention},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.passwords == (password.Params{}) {
		c.passwords = password.DefaultParams()
	}
	if c.hashed == nil {
		c.hashed = func() {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// adminPassword reads the first administrator's password. Its error names the file and nothing of what is in it.
func (c *Config) adminPassword() (string, error) {
	if c.AdminPasswordFile == "" {
		return c.AdminPassword.Reveal(), nil
	}
	f, err := os.Open(c.AdminPasswordFile)
	if err != nil {
		return "", fmt.Errorf("%s: %w", settingAdminFile, err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxPasswordFile))
	if err != nil {
		return "", fmt.Errorf("%s: %w", settingAdminFile, err)
	}
	given := strings.TrimRight(string(text), "\r\n")
	if !policy.ValidPassword(given) {
		return "", fmt.Errorf("%s: %s holds a password of %d bytes; allowed are %d to %d", settingAdminFile, c.AdminPasswordFile,
			len(given), policy.MinPassword, policy.MaxPassword)
	}
	return given, nil
}

func (c *Config) meter() metric.Meter {
	if c.Telemetry.MeterProvider == nil {
		return metricnoop.Meter{}
	}
	return c.Telemetry.MeterProvider.Meter("github.com/wiggle-run/wiggle/services/auth")
}

// member is how the primary of a shard is connected to.
func (c *Config) member(m topology.Member, size int) postgres.MemberConfig {
	if size == 0 {
		size = m.Pool
	}
	return postgres.MemberConfig{
		Name: m.Name(), URL: m.ConnString(), MaxConns: size, Logger: c.Logger, ApplicationName: "wiggle-auth",
	}
}
