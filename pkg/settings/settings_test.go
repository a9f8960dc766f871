package settings_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/wiggle-run/wiggle/pkg/settings"
)

type config struct {
	Listen    string
	Format    string
	Origins   []string
	Shards    []int
	Token     settings.Secret
	Verify    bool
	Polls     int
	Ratio     float64
	Payload   int64
	Cache     time.Duration
	Retention time.Duration
}

func (c *config) declare(r *settings.Registry) {
	r.Section("router")
	r.String(&c.Listen, "WIGGLE_LISTEN", ":8080", "Where to listen.")
	r.String(&c.Format, "WIGGLE_LOG_FORMAT", "json", "How logs look.", settings.OneOf("json", "text"))
	r.Strings(&c.Origins, "WIGGLE_CORS_ORIGINS", []string{"a", "b"}, "Whose pages may call.")
	r.Ints(&c.Shards, "WIGGLE_SHARDS", []int{0, 1}, "Which to serve.")
	r.Secret(&c.Token, "WIGGLE_TOKEN", "Proves who we are.")
	r.Bool(&c.Verify, "WIGGLE_VERIFY", false, "Whether to verify.")
	r.Int(&c.Polls, "WIGGLE_POLLS", 10, "How many polls.", settings.Between(1, 100))
	r.Float(&c.Ratio, "WIGGLE_RATIO", 0.5, "How much.", settings.Between(0, 1))
	r.Bytes(&c.Payload, "WIGGLE_LIMIT_PAYLOAD_BYTES", 2<<20, "How large a payload may be.")
	r.Duration(&c.Cache, "WIGGLE_AUTH_CACHE_MILLIS", 30*time.Second, "How long.", settings.Within(0, time.Hour))
	r.Duration(&c.Retention, "WIGGLE_EVENTS_RETENTION", 7*24*time.Hour, "How long | events stay.", settings.Example("36h"))
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	var c config
	r := settings.NewRegistry()
	c.declare(r)
	values, err := r.Load([]string{"PATH=/bin", "WIGGLE_LISTEN=", "X"})
	if err != nil {
		t.Fatal(err)
	}
	want := config{
		Listen: ":8080", Format: "json", Origins: []string{"a", "b"}, Shards: []int{0, 1}, Polls: 10, Ratio: 0.5, Payload: 2 << 20,
		Cache: 30 * time.Second, Retention: 7 * 24 * time.Hour,
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v", c)
	}
	if values[0] != (settings.Value{Name: "WIGGLE_LISTEN", Text: ":8080"}) {
		t.Errorf("got %+v", values[0])
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	var c config
	r := settings.NewRegistry()
	c.declare(r)
	values, err := r.Load([]string{
		"WIGGLE_LISTEN=:9=x", "WIGGLE_LOG_FORMAT=text", "WIGGLE_CORS_ORIGINS= c ,,d", "WIGGLE_TOKEN=hush", "WIGGLE_VERIFY=On",
		"WIGGLE_POLLS=100", "WIGGLE_RATIO=1", "WIGGLE_LIMIT_PAYLOAD_BYTES=512KiB", "WIGGLE_AUTH_CACHE_MILLIS=1500",
		"WIGGLE_EVENTS_RETENTION=2d", "WIGGLE_SHARDS=3, 4",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := config{
		Listen: ":9=x", Format: "text", Origins: []string{"c", "d"}, Shards: []int{3, 4}, Token: "hush", Verify: true, Polls: 100, Ratio: 1,
		Payload: 512 << 10, Cache: 1500 * time.Millisecond, Retention: 48 * time.Hour,
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v", c)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("settings", "env", values, "token", c.Token)
	text, _ := json.Marshal(c)
	for _, shown := range []string{log.String(), fmt.Sprintf("%v %+v %#v %s", c, c, c, c.Token), string(text)} {
		if strings.Contains(shown, "hush") {
			t.Errorf("the secret is shown: %s", shown)
		}
	}
	if c.Token.Reveal() != "hush" || !strings.Contains(log.String(), "WIGGLE_POLLS=100") {
		t.Errorf("log: %s", &log)
	}
}

func TestEveryProblemAtOnce(t *testing.T) {
	t.Parallel()
	var c config
	var url string
	r := settings.NewRegistry()
	c.declare(r)
	r.String(&url, "WIGGLE_URL", "", "Where the router is.", settings.Required(), settings.Example("http://router:8080"))
	r.External("WIGGLE_STORAGE_TOPOLOGY", "Path of the topology.")
	r.External("WIGGLE_JDBC_*", "")
	r.Allow("WIGGLE_DB_PASSWORD")
	r.Check(func() error { return errors.New("checks run on good values only") })
	_, err := r.Load([]string{
		"WIGGLE_LOG_FORMAT=xml", "WIGGLE_VERIFY=perhaps", "WIGGLE_POLLS=101", "WIGGLE_RATIO=NaN",
		"WIGGLE_LIMIT_PAYLOAD_BYTES=2MB", "WIGGLE_AUTH_CACHE_MILLIS=30s", "WIGGLE_EVENTS_RETENTION=-1h",
		"WIGGLE_LISTN=:80", "WIGGLE_STORAGE_TOPOLOGI=x", "WIGGLE_QQQQQQQQ=", "WIGGLE_STORAGE_TOPOLOGY=x", "WIGGLE_JDBC_URL=x",
		"WIGGLE_DB_PASSWORD=x", "WIGGLE_LIMIT_PAYLOAD_BYTES2=9", "WIGGLE_SHARDS=0,-1,x",
	})
	all, ok := errors.AsType[*settings.Error](err)
	if !ok || len(all.Problems) != 13 {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{
		`WIGGLE_LOG_FORMAT is "xml"; use json, text`, `WIGGLE_VERIFY is "perhaps"; use true or false`,
		`WIGGLE_POLLS is 101; allowed is 1 to 100`, `WIGGLE_RATIO is "NaN", which is not a number`,
		`WIGGLE_LIMIT_PAYLOAD_BYTES is "2MB"; use`, `WIGGLE_AUTH_CACHE_MILLIS is "30s"; use a whole number of milliseconds`,
		`WIGGLE_EVENTS_RETENTION is -1h; it must not be negative`,
		`WIGGLE_LISTN is not a setting of this process; did you mean WIGGLE_LISTEN?`,
		`WIGGLE_STORAGE_TOPOLOGI is not a setting of this process; did you mean WIGGLE_STORAGE_TOPOLOGY?`,
		"WIGGLE_QQQQQQQQ is not a setting of this process\n",
		`WIGGLE_URL is not set: Where the router is. For example http://router:8080`,
		`did you mean WIGGLE_LIMIT_PAYLOAD_BYTES?`,
		`WIGGLE_SHARDS has an entry that is -1; it must not be negative`,
	} {
		if !strings.Contains(err.Error()+"\n", want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if c.Polls != 10 {
		t.Errorf("a bad value was stored: %d", c.Polls)
	}
}

func TestChecks(t *testing.T) {
	t.Parallel()
	r := settings.NewRegistry()
	var key string
	r.String(&key, "WIGGLE_TLS_KEY", "", "A key.")
	r.Check(func() error {
		if key != "" {
			return errors.New("WIGGLE_TLS_KEY needs WIGGLE_TLS_CERT")
		}
		return nil
	})
	if _, err := r.Load(nil); err != nil {
		t.Error(err)
	}
	if _, err := r.Load([]string{"WIGGLE_TLS_KEY=x"}); err == nil || !strings.Contains(err.Error(), "needs") {
		t.Errorf("got %v", err)
	}
}

func TestTwoServicesShareASetting(t *testing.T) {
	t.Parallel()
	r := settings.NewRegistry()
	var a, b int
	r.Section("router")
	r.Int(&a, "WIGGLE_N", 1, "A number.")
	r.Section("instances")
	r.Int(&b, "WIGGLE_N", 1, "A number.")
	for _, n := range []*int{&a, &b} {
		r.Check(func() error {
			if *n == 8 {
				return errors.New("WIGGLE_N is 8")
			}
			return nil
		})
	}
	if _, err := r.Load([]string{"WIGGLE_N=8"}); err == nil || strings.Count(err.Error(), "WIGGLE_N is 8") != 1 {
		t.Errorf("what both check is not told once: %v", err)
	}
	if _, err := r.Load([]string{"WIGGLE_N=7"}); err != nil || a != 7 || b != 7 {
		t.Errorf("got %d, %d, %v", a, b, err)
	}
	if rows := r.Table(); len(rows) != 1 || strings.Join(rows[0].Sections, " ") != "router instances" {
		t.Errorf("got %+v", rows)
	}
	r.Int(&b, "WIGGLE_N", 2, "A number.")
	if _, err := r.Load(nil); err == nil {
		t.Error("two defaults were accepted")
	}
}

func TestBadDeclarations(t *testing.T) {
	t.Parallel()
	var s string
	for name, declare := range map[string]func(*settings.Registry){
		"prefix":  func(r *settings.Registry) { r.String(&s, "LISTEN", "", "x") },
		"case":    func(r *settings.Registry) { r.String(&s, "WIGGLE_listen", "", "x") },
		"doc":     func(r *settings.Registry) { r.String(&s, "WIGGLE_X", "", "") },
		"default": func(r *settings.Registry) { r.String(&s, "WIGGLE_X", "c", "x", settings.OneOf("a", "b")) },
		"range": func(r *settings.Registry) {
			var n int
			r.Int(&n, "WIGGLE_X", 11, "x", settings.Between(1, 10))
		},
	} {
		r := settings.NewRegistry()
		declare(r)
		if _, err := r.Load(nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var c config
	r := settings.NewRegistry()
	c.declare(r)
	r.External("WIGGLE_JDBC_*", "")
	r.External("WIGGLE_STORAGE_TOPOLOGY", "The topology.")
	text := settings.Markdown(r.Table())
	for _, want := range []string{
		"| `WIGGLE_AUTH_CACHE_MILLIS` | duration in milliseconds, 0 to 3600000 | `30000` | router | How long. |",
		"| `WIGGLE_EVENTS_RETENTION` | duration | `7d` | router | How long \\| events stay. Example: `36h` |",
		"| `WIGGLE_LIMIT_PAYLOAD_BYTES` | size in bytes | `2MiB` |", "| `WIGGLE_LOG_FORMAT` | json, text | `json` |",
		"| `WIGGLE_STORAGE_TOPOLOGY` | external |  | router | The topology. |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "JDBC") {
		t.Error("what has no documentation is documented")
	}
}

func FuzzLoad(f *testing.F) {
	for _, seed := range []string{"9223372036854775807GiB", "-1", "1e400", "99999999999d", "0x1", ",,", "true"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var c config
		r := settings.NewRegistry()
		c.declare(r)
		var environ []string
		for _, row := range r.Table() {
			environ = append(environ, row.Name+"="+text)
		}
		_, _ = r.Load(environ)
		if c.Polls < 1 || c.Polls > 100 || c.Payload < 0 || c.Cache < 0 || c.Cache > time.Hour || c.Retention < 0 {
			t.Errorf("%q gives %+v", text, c)
		}
	})
}
