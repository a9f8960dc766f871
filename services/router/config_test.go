package router_test

import (
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/settings"
	"github.com/wiggle-run/wiggle/services/router"
)

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	_, err := router.New(router.Config{InstancesURLs: []string{"localhost:1"}})
	if err == nil || !strings.Contains(err.Error(), "topology") || !strings.Contains(err.Error(), "localhost:1") {
		t.Errorf("got %v", err)
	}
	_, err = router.New(router.Config{})
	for _, want := range []string{"WIGGLE_INSTANCES_URLS", "WIGGLE_AUTH_URLS", "WIGGLE_AUTH=off"} { // AUT-1: secure unless it says otherwise
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	_, err = router.New(router.Config{AuthOff: true, AuthURLs: []string{"ftp://a"}, TrustedProxies: []string{"10.0.0.0/33"}})
	for _, want := range []string{`WIGGLE_AUTH_URLS: names "ftp://a"`, `WIGGLE_TRUSTED_PROXIES: names "10.0.0.0/33"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	var cfg router.Config
	r := settings.NewRegistry()
	cfg.Declare(r)
	_, err := r.Load([]string{
		"WIGGLE_INSTANCES_URLS=http://a:1, dns+http://b:2", "WIGGLE_ROUTER_MAX_PARKED_POLLS=7",
		"WIGGLE_LIMIT_PAYLOAD_BYTES=4MiB", "WIGGLE_ROUTER_CALL_TIMEOUT=3s", "WIGGLE_AUTH_URLS=http://c:3", "WIGGLE_AUTH_GRACE=1h",
		"WIGGLE_AUTH_CACHE_MILLIS=5000",
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.InstancesURLs) != 2 || cfg.MaxParkedPolls != 7 || cfg.PayloadBytes != 4<<20 || cfg.CallTimeout != 3*time.Second ||
		cfg.Addr != "127.0.0.1:8420" || cfg.AuthOff || len(cfg.AuthURLs) != 1 || cfg.AuthCache != 5*time.Second || cfg.AuthGrace != time.Hour {
		t.Errorf("got %+v", cfg)
	}
}

func TestMainRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	const database, urls = "WIGGLE_DATABASE_URL=postgres://db/w", "WIGGLE_INSTANCES_URLS=http://127.0.0.1:1"
	for _, test := range []struct {
		want    string
		environ []string
	}{
		{"coordinator", []string{database, urls, "WIGGLE_COORD_X=1"}},
		{"did you mean WIGGLE_ROUTER_ADDR", []string{database, urls, "WIGGLE_ROUTER_ADR=x"}},
		{"cannot be set together", []string{database, urls, "WIGGLE_STORAGE_TOPOLOGY={}"}},
		{`"nonsense", which is not`, []string{database, "WIGGLE_INSTANCES_URLS=nonsense", "WIGGLE_LOG_LEVEL=error"}},
		{"WIGGLE_INSTANCES_URLS", []string{database, "WIGGLE_LOG_LEVEL=error"}},
		{"WIGGLE_AUTH_URLS", []string{database, urls, "WIGGLE_LOG_LEVEL=error"}},
		{`WIGGLE_AUTH: is "no"`, []string{database, urls, "WIGGLE_AUTH=no", "WIGGLE_LOG_LEVEL=error"}},
		{"listen", []string{database, urls, "WIGGLE_AUTH=off", "WIGGLE_ROUTER_ADDR=127.0.0.1:99999", "WIGGLE_LOG_LEVEL=error"}},
	} {
		if err := router.Main(t.Context(), test.environ); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v", test.environ, err)
		}
	}
}
