package topology_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/wiggle-run/wiggle/pkg/topology"
)

func TestPasswordsAreNeverPrinted(t *testing.T) { // SHD-12
	t.Parallel()
	top, err := topology.Parse(readFixture(t, "testdata/valid/urls.json"), testEnv)
	if err != nil {
		t.Fatal(err)
	}
	credential := topology.NewCredential(literal)
	document := topology.Document{
		Defaults: topology.Settings{Password: credential},
		Shards: []topology.DocumentShard{{
			Primary: &topology.DocumentMember{URL: credential, Settings: topology.Settings{Password: credential}},
		}},
	}
	// Credentials marshal to JSON in clear, as the document is where they belong; everything else is redacted there too.
	credentials := []any{
		credential, document, &document, document.Shards[0], *document.Shards[0].Primary,
		topology.Single{URL: credential, ReplicaURLs: []topology.Credential{credential}},
	}
	values := []any{
		topology.NewSecret(literal), top, top.Shards, top.Shards[0].Primary, top.Connections(),
		struct{ inner any }{document},
		struct{ inner topology.Member }{top.Shards[0].Primary},
		struct{ inner topology.Settings }{document.Defaults},
	}
	for _, value := range values {
		checkPrinted(t, value)
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "value", value)
		noPassword(t, log.String())
		data, err := json.Marshal(value)
		if err != nil {
			t.Error(err)
		}
		noPassword(t, string(data))
	}
	for _, value := range credentials {
		checkPrinted(t, value)
	}
}

// checkPrinted prints value with verbs of every kind, right for it or not.
func checkPrinted(t *testing.T, value any) {
	t.Helper()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%08.3f"} {
		noPassword(t, fmt.Sprintf(verb, value))
	}
	if strings.Contains(fmt.Sprintf("%x", value), fmt.Sprintf("%x", literal)) {
		t.Errorf("%T: printed in hexadecimal", value)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "value", value)
	noPassword(t, log.String())
}

func TestSecret(t *testing.T) { // SHD-12
	t.Parallel()
	var zero topology.Secret
	s := topology.NewSecret(literal)
	if s.Reveal() != literal || s.IsZero() || s.String() != "[redacted]" || fmt.Sprintf("%#v", s) != "[redacted]" {
		t.Errorf("got %v", s)
	}
	if zero.Reveal() != "" || !zero.IsZero() || zero.String() != "" || !topology.NewSecret("").IsZero() {
		t.Errorf("zero is %v", zero)
	}
}

func TestDocumentRoundTrip(t *testing.T) { // SHD-10
	t.Parallel()
	for _, name := range fixtures(t, "valid") {
		want, err := topology.Parse(readFixture(t, name+".json"), testEnv)
		if err != nil {
			t.Fatal(err)
		}
		var document topology.Document
		if err := json.Unmarshal(readFixture(t, name+".json"), &document); err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		got, err := topology.Parse(data, testEnv)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.String() != want.String() {
			t.Errorf("%s: got\n%swant\n%s", name, got, want)
		}
	}
}
