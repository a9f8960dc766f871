package process

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/wiggle-run/wiggle/pkg/release"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/pkg/tlsfiles"
)

// The names of the settings by which services know each other, and of what is spoken between them.
const (
	// SettingServiceKey names the setting with the keys by which services know each other.
	SettingServiceKey = "WIGGLE_SERVICE_KEY"
	// SettingAuth names the switch by which everybody may do everything.
	SettingAuth = "WIGGLE_AUTH"

	settingServiceKeyFile = "WIGGLE_SERVICE_KEY_FILE"
	settingTLSCert        = "WIGGLE_TLS_CERT"
	settingTLSKey         = "WIGGLE_TLS_KEY"
	settingTLSClientCA    = "WIGGLE_TLS_CLIENT_CA"
	settingTLSCA          = "WIGGLE_TLS_CA"
	settingLimitHeader    = "WIGGLE_LIMIT_HEADER_BYTES"
	settingLimitStreams   = "WIGGLE_LIMIT_STREAMS"
	settingLimitCall      = "WIGGLE_LIMIT_CALL"
)

const (
	// minServiceKey is how short a service key may be: 32 characters of hexadecimal digits are 128 bits.
	minServiceKey = 32
	// howToMake says how to come by a key.
	howToMake = "make one with: openssl rand -hex 32"
	// maxServiceKeys is more than a rotation needs.
	maxServiceKeys = 8
	// maxKeyFile bounds what is read of a file of keys.
	maxKeyFile = 64 << 10

	defaultHeaderBytes  = 64 << 10
	defaultStreams      = 1000
	defaultCallDuration = 6 * time.Minute
)

// The values of the setting that SettingAuth names.
const (
	AuthOn  = "on"
	AuthOff = "off"
)

// Port is where the service of a process listens.
type Port struct {
	// Setting names the setting with the address, Addr is where that is.
	Setting string
	Addr    *string
	// Public is for clients, workers and browsers to call. Else only services of the cluster may.
	Public bool
}

// transport are the settings by which the services of a cluster talk to each other.
type transport struct {
	key     settings.Secret
	keyFile string
	auth    string
	files   tlsfiles.Config
	header  int64
	limits  rpc.Limits

	keys []string // of key or keyFile, after check
}

// DeclareAuth declares the switch by which everybody may do everything, for all that it concerns: [AuthOn], the default, or
// [AuthOff].
func DeclareAuth(r *settings.Registry, target *string) {
	r.String(target, SettingAuth, AuthOn, "on: callers need a credential and permissions. off: everybody may do everything, and"+
		" services need neither key nor certificate.", settings.OneOf(AuthOn, AuthOff))
}

func (t *transport) declare(r *settings.Registry) {
	r.Secret(&t.key, SettingServiceKey, "The key by which the services of a cluster know each other, the same for all of them, of at"+
		" least 32 characters. Several with commas between them are all accepted, and the first is shown: so keys are replaced.")
	r.String(&t.keyFile, settingServiceKeyFile, "",
		"Path of a file that holds what WIGGLE_SERVICE_KEY would. It is read at the start.",
		settings.Example("/run/secrets/wiggle-service-key"))
	DeclareAuth(r, &t.auth)
	r.String(&t.files.Certificate, settingTLSCert, "", "Path of the process's certificate in PEM, with the intermediate ones after it."+
		" The port then speaks TLS, and services that are called are shown it. Like all TLS files it is read again when it changes.",
		settings.Example("/tls/tls.crt"))
	r.String(&t.files.Key, settingTLSKey, "", "Path of the certificate's key in PEM.", settings.Example("/tls/tls.key"))
	r.String(&t.files.ClientCA, settingTLSClientCA, "", "Path of the authorities of callers' certificates in PEM. To a router callers"+
		" may show one; to all other services they must, and without a service key it is their identity.", settings.Example("/tls/ca.crt"))
	r.String(&t.files.CA, settingTLSCA, "",
		"Path of the authorities of the services that are called, in PEM. Not set: the system's.", settings.Example("/tls/ca.crt"))
	r.Bytes(&t.header, settingLimitHeader, defaultHeaderBytes, "How large the headers of a request may be.", settings.Between(4<<10, 1<<20))
	r.Int(&t.limits.Streams, settingLimitStreams, defaultStreams,
		"How many calls may be under way on one connection. Clients open another when there are more.", settings.Between(1, 100_000))
	r.Duration(&t.limits.CallDuration, settingLimitCall, defaultCallDuration,
		"How long a call may take that is no stream. Callers may ask to wait for an instance for up to five minutes.",
		settings.Within(time.Second, time.Hour))
}

// check says what is wrong, and reads the keys. A command without a port talks to no service, and needs none of it.
func (t *transport) check(port Port) []Problem {
	if port.Addr == nil {
		return nil
	}
	found := append(t.readKeys(), t.checkFiles()...)
	if !port.Public && t.anonymous() && t.auth != AuthOff {
		found = append(found, Problem{SettingServiceKey, fmt.Sprintf("is not set, and so nothing tells whether a service calls: whoever"+
			" reaches the port (%s=%s) could say who they are. Set it, or %s, to the same for every service (%s), or set %s (for TLS with"+
			" client certificates), or let everybody do everything with %s=%s", port.Setting, *port.Addr, settingServiceKeyFile, howToMake,
			settingTLSClientCA, SettingAuth, AuthOff)})
	}
	return found
}

// anonymous tells whether there is nothing by which services know each other.
func (t *transport) anonymous() bool {
	return t.key == "" && t.keyFile == "" && t.files.ClientCA == ""
}

// readKeys finds the service keys.
func (t *transport) readKeys() []Problem {
	where, text := SettingServiceKey, t.key.Reveal()
	switch {
	case t.keyFile != "" && text != "":
		return []Problem{{settingServiceKeyFile, "is set, and so is " + SettingServiceKey + ": set one of them"}}
	case t.keyFile != "":
		where = settingServiceKeyFile
		content, err := readKeyFile(t.keyFile)
		if err != nil {
			return []Problem{{where, err.Error()}}
		}
		text = content
	case text == "":
		return nil
	}
	var found []Problem
	for i, key := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' || r == '\r' }) {
		if key = strings.TrimSpace(key); key == "" {
			continue
		}
		if why := weakness(key); why != "" {
			found = append(found, Problem{where, fmt.Sprintf("has a key (number %d) that %s; %s", i+1, why, howToMake)})
		}
		t.keys = append(t.keys, key)
	}
	switch n := len(t.keys); {
	case n == 0:
		found = append(found, Problem{where, "holds no key; " + howToMake})
	case n > maxServiceKeys:
		found = append(found, Problem{where, fmt.Sprintf("holds %d keys; at most %d are accepted", n, maxServiceKeys)})
	}
	return found
}

func readKeyFile(name string) (string, error) {
	info, err := os.Stat(name)
	if err != nil {
		return "", err
	}
	if info.Size() > maxKeyFile {
		return "", fmt.Errorf("names a file of %d bytes, which is no file of keys", info.Size())
	}
	text, err := os.ReadFile(name)
	return string(text), err
}

// weakness says what is wrong with a key, and does not show it.
func weakness(key string) string {
	if len(key) < minServiceKey {
		return fmt.Sprintf("has %d characters and must have %d", len(key), minServiceKey)
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "has characters that a header cannot carry: use letters, digits and signs of ASCII"
	}
	return ""
}

// checkFiles says what is wrong with the TLS files.
func (t *transport) checkFiles() []Problem {
	for _, pair := range [][2]string{{settingTLSCert, settingTLSKey}, {settingTLSKey, settingTLSCert}} {
		values := map[string]string{settingTLSCert: t.files.Certificate, settingTLSKey: t.files.Key}
		if values[pair[0]] == "" && values[pair[1]] != "" {
			return []Problem{{pair[0], "is not set, and " + pair[1] + " is: a certificate needs its key"}}
		}
	}
	if t.files.ClientCA != "" && t.files.Certificate == "" {
		return []Problem{{settingTLSClientCA, "is set, and " + settingTLSCert + " is not: callers can show certificates only over TLS"}}
	}
	_, err := tlsfiles.Open(t.files)
	if err == nil {
		return nil
	}
	list := []error{err}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		list = several.Unwrap()
	}
	found := make([]Problem, 0, len(list))
	for _, err := range list {
		found = append(found, Problem{Message: "TLS: " + err.Error()})
	}
	return found
}

// open makes the transport of the process's services.
func (t *transport) open(port Port, e Equipment) (rpc.Transport, error) {
	meter := metric.Meter(noop.Meter{})
	if e.Telemetry.MeterProvider != nil {
		meter = e.Telemetry.MeterProvider.Meter("github.com/wiggle-run/wiggle/pkg/process")
	}
	cfg := t.files
	cfg.Logger, cfg.Meter = e.Logger, meter
	files, err := tlsfiles.Open(cfg)
	if err != nil {
		return rpc.Transport{}, fmt.Errorf("open the TLS files: %w", err)
	}
	releases, err := release.NewPeers(e.Release, e.Logger, meter, time.Now)
	if err != nil {
		return rpc.Transport{}, err
	}
	out := rpc.Transport{
		ServiceKeys: t.keys, ServerTLS: files.Server(), ClientTLS: files.Client, Limits: t.limits,
		Releases: releases, Warnings: files.Warnings,
	}
	out.Limits.HeaderBytes = int(t.header)
	if !port.Public {
		out.RequireService, out.ServiceCertificates = !t.anonymous(), t.files.ClientCA != ""
	}
	if t.auth == AuthOff && !port.Public { // a router says so itself
		e.Logger.Warn("everybody may do everything, as "+SettingAuth+"=off says", slog.Bool("services_know_each_other", out.RequireService))
	}
	return out, nil
}
