package secrets

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
)

// A secret that comes out is found wherever it does, however it is written, and the finding does not repeat it.
func TestSearchFindsWhatIsPlanted(t *testing.T) {
	t.Parallel()
	const planted, key = `Pl4nted&"p/ss word+`, "wgk_publicpublic1234_hiddenHIDDENhidden4711"
	written := map[string]string{
		"as it is":             planted,
		"in lower case":        strings.ToLower(planted),
		"in a query":           url.QueryEscape(planted),
		"in a path":            url.PathEscape(planted),
		"in a URL":             url.UserPassword("u", planted).String(),
		"in hexadecimal":       hex.EncodeToString([]byte(planted)),
		"in base64":            base64.StdEncoding.EncodeToString([]byte(planted)),
		"in base64 of URLs":    base64.RawURLEncoding.EncodeToString([]byte(planted)),
		"in a basic header":    base64.StdEncoding.EncodeToString([]byte("user:" + planted + "\n")),
		"in base64, one on":    base64.StdEncoding.EncodeToString([]byte("1" + planted + "22")),
		"in base64, two on":    base64.StdEncoding.EncodeToString([]byte("22" + planted + "1")),
		"a key":                key,
		"a key without its id": "hiddenHIDDENhidden4711",
	}
	if text, err := json.Marshal(planted); err == nil {
		written["in JSON"] = string(text)
	}
	for _, kind := range Kinds() {
		for how, text := range written {
			var s Search
			s.Use("the password", planted)
			s.Use("the key", key)
			s.Add(kind, "planted", "before it "+text+" behind it")
			found := s.Find()
			if len(found) != 1 || found[0].Kind != kind || found[0].Where != "planted" {
				t.Errorf("%s, %s: found %v", kind, how, found)
				continue
			}
			if e := found[0].Excerpt; !strings.Contains(e, "before it") || !strings.Contains(e, "[***]") || strings.Contains(e, "Pl4nted") ||
				strings.Contains(e, "HIDDEN") {
				t.Errorf("%s, %s: the excerpt is %s", kind, how, e)
			}
		}
	}
}

// What is no secret is not found: a key's public id, and what may be kept where it is.
func TestSearchFindsNothingElse(t *testing.T) {
	t.Parallel()
	var s Search
	s.Use("the key", "wgk_publicpublic1234_hiddenHIDDENhidden4711")
	s.Use("a hash", "$argon2id$of a password", Rows)
	for _, kind := range Kinds() {
		s.Add(kind, "innocent", "wgk_publicpublic1234 is a key")
	}
	s.Add(Rows, "kept", "$argon2id$of a password")
	if found := s.Find(); found != nil {
		t.Errorf("found %v", found)
	}
	s.Add(Logs, "planted", "$argon2id$of a password")
	if found := s.Find(); len(found) != 1 || found[0].Kind != Logs {
		t.Errorf("found %v", found)
	}
	if !s.Has(Logs, "is a key") || s.Has(Rows, "nowhere") {
		t.Error("what came out is not what was added")
	}
}
