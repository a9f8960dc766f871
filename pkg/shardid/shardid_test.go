package shardid_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/wiggle-run/wiggle/pkg/shardid"
)

type fixture struct {
	MaxLength int        `json:"maxLength"`
	MaxShard  int        `json:"maxShard"`
	Valid     []goodID   `json:"valid"`
	Legacy    []goodID   `json:"legacy"`
	Broken    []brokenID `json:"broken"`
	Comment   any        `json:"_"`
}

type goodID struct {
	ID         string  `json:"id"`
	Kind       string  `json:"kind"`
	Shard      int     `json:"shard"`
	Home       bool    `json:"home"`
	ULID       *string `json:"ulid"`
	UnixMillis uint64  `json:"unixMillis"`
}

type brokenID struct {
	ID  string `json:"id"`
	Why string `json:"why"`
}

func loadFixture(tb testing.TB) fixture {
	tb.Helper()
	data, err := os.ReadFile("testdata/ids.json")
	if err != nil {
		tb.Fatal(err)
	}
	var f fixture
	if err := json.Unmarshal(data, &f); err != nil {
		tb.Fatal(err)
	}
	return f
}

// testULID decodes with the ulid package, which the package under test does not use for it.
func testULID(tb testing.TB, text string) ulid.ULID {
	tb.Helper()
	u, err := ulid.ParseStrict(text)
	if err != nil {
		tb.Fatal(err)
	}
	return u
}

func TestFixture(t *testing.T) { // SHD-1, SHD-3
	t.Parallel()
	f := loadFixture(t)
	if n := len(f.Valid) + len(f.Legacy) + len(f.Broken); n < 60 {
		t.Errorf("only %d fixtures", n)
	}
	if f.MaxLength != shardid.MaxLength || f.MaxShard != shardid.MaxShard {
		t.Errorf("limits of the fixture are %d, %d", f.MaxLength, f.MaxShard)
	}
	for _, c := range f.Valid {
		checkGood(t, c, false)
	}
	for _, c := range f.Legacy {
		checkGood(t, c, true)
	}
	for _, c := range f.Broken {
		checkBroken(t, c)
	}
}

func checkGood(t *testing.T, c goodID, legacy bool) {
	t.Helper()
	id, err := shardid.Parse(c.ID)
	if err != nil {
		t.Errorf("Parse(%q): %v", c.ID, err)
		return
	}
	if got := id.String(); got != c.ID {
		t.Errorf("Parse(%q) prints as %q", c.ID, got)
	}
	if id.Shard() != c.Shard || id.Home() != c.Home || id.IsLegacy() != legacy {
		t.Errorf("%q: shard %d, home %v, legacy %v; want %d, %v, %v", c.ID, id.Shard(), id.Home(), id.IsLegacy(), c.Shard, c.Home, legacy)
	}
	if want := map[bool]int{true: 77, false: c.Shard}[c.Home]; id.Route(77) != want {
		t.Errorf("%q routes to %d, want %d", c.ID, id.Route(77), want)
	}
	u, ok := id.ULID()
	if ok != (c.ULID != nil) {
		t.Errorf("%q: has ULID %v", c.ID, ok)
	}
	if ok && (u != testULID(t, *c.ULID) || u.Time() != c.UnixMillis) {
		t.Errorf("%q: ULID %v at %d, want %v at %d", c.ID, u, u.Time(), *c.ULID, c.UnixMillis)
	}
	checkKind(t, c, id)
}

func checkKind(t *testing.T, c goodID, id shardid.ID) {
	t.Helper()
	instance, instanceErr := shardid.ParseInstance(c.ID)
	token, tokenErr := shardid.ParseToken(c.ID)
	if c.Kind != "either" && id.Kind().String() != c.Kind {
		t.Errorf("%q is an id of an %v, want %v", c.ID, id.Kind(), c.Kind)
	}
	if (instanceErr == nil) != (c.Kind != "token") || (tokenErr == nil) != (c.Kind != "instance") {
		t.Errorf("%q (%s): as an instance %v, as a token %v", c.ID, c.Kind, instanceErr, tokenErr)
	}
	if instanceErr == nil && (instance.Kind() != shardid.KindInstance || instance.String() != c.ID) {
		t.Errorf("ParseInstance(%q) is %v, %v", c.ID, instance.Kind(), instance)
	}
	if tokenErr == nil && (token.Kind() != shardid.KindToken || token.String() != c.ID) {
		t.Errorf("ParseToken(%q) is %v, %v", c.ID, token.Kind(), token)
	}
}

func checkBroken(t *testing.T, c brokenID) {
	t.Helper()
	for name, parse := range map[string]func(string) (shardid.ID, error){
		"Parse": shardid.Parse, "ParseInstance": shardid.ParseInstance, "ParseToken": shardid.ParseToken,
	} {
		id, err := parse(c.ID)
		if !id.IsZero() {
			t.Errorf("%s(%q) (%s) is %v", name, c.ID, c.Why, id)
		}
		if _, ok := errors.AsType[*shardid.ParseError](err); !ok {
			t.Errorf("%s(%q) (%s): error %v", name, c.ID, c.Why, err)
		}
	}
}

func TestErrorSaysWhatIsWrongAndWhatIsRight(t *testing.T) { // SHD-3
	t.Parallel()
	const u = ".01k6zqk3v8r5d1f0m9c2x7y4ab"
	for input, reason := range map[string]string{
		"wfi.s03" + u:                            "leading zero",
		"wfi.s-1" + u:                            "negative",
		"wfi.s2147483648" + u:                    "above 2147483647",
		"WFI.s3" + u:                             "unknown prefix",
		"wfi..s3" + u:                            "empty segment",
		"wfi.s3.01K6ZQK3V8R5D1F0M9C2X7Y4AB":      "upper-case",
		"wfi.s3.81k6zqk3v8r5d1f0m9c2x7y4ab":      "overflows",
		"wfi.s3.01k6":                            "4 characters",
		"tok.s3" + u:                             "id of a token",
		strings.Repeat("x", 4096):                "longer than 128",
		"wfi_\x00\x1b[31m\u202e" + "\n" + "evil": "other than letters",
	} {
		_, err := shardid.ParseInstance(input)
		if err == nil {
			t.Errorf("%q is accepted", input)
			continue
		}
		message := err.Error()
		if !strings.Contains(message, reason) || !strings.Contains(message, "want wfi.s{shard}.{ulid}") {
			t.Errorf("%q: message %q", input, message)
		}
		if len(message) > 400 || strings.ContainsFunc(message, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q: message is long or has unprintable characters: %q", input, message)
		}
	}
}

func TestExampleInMessagesParses(t *testing.T) {
	t.Parallel()
	for _, parse := range []func(string) (shardid.ID, error){shardid.Parse, shardid.ParseInstance, shardid.ParseToken} {
		_, err := parse("x")
		_, example, ok := strings.Cut(err.Error(), "such as ")
		if !ok {
			t.Fatalf("no example in %q", err)
		}
		if _, err := parse(example); err != nil {
			t.Error(err)
		}
	}
}

func TestMintAndDerive(t *testing.T) { // SHD-1, SHD-2, SHD-3
	t.Parallel()
	a, b := testULID(t, "01k6zqk3v8r5d1f0m9c2x7y4ab"), testULID(t, "7zzzzzzzzzzzzzzzzzzzzzzzzz")
	instance := shardid.NewInstance(3, a)
	bare, err := shardid.ParseInstance("wfi_7f3c")
	if err != nil {
		t.Fatal(err)
	}
	coordinator, err := shardid.ParseInstance("acme.c1.e2.s3.01k6zqk3v8r5d1f0m9c2x7y4ab")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id    shardid.ID
		want  string
		shard int
	}{
		{instance, "wfi.s3.01k6zqk3v8r5d1f0m9c2x7y4ab", 3},
		{shardid.NewToken(shardid.MaxShard, b), "tok.s2147483647.7zzzzzzzzzzzzzzzzzzzzzzzzz", shardid.MaxShard},
		{shardid.NewInstance(0, ulid.ULID{}), "wfi.s0.00000000000000000000000000", 0},
		{instance.Token(b), "tok.s3.7zzzzzzzzzzzzzzzzzzzzzzzzz", 3},
		{instance.Token(a).Token(b), "tok.s3.7zzzzzzzzzzzzzzzzzzzzzzzzz", 3},
		{instance.Child(b), "wfi.s3.7zzzzzzzzzzzzzzzzzzzzzzzzz", 3},
		{bare.Token(a), "tok_01k6zqk3v8r5d1f0m9c2x7y4ab", shardid.HomeShard},
		{bare.Child(a), "wfi_01k6zqk3v8r5d1f0m9c2x7y4ab", shardid.HomeShard},
		{coordinator.Token(b), "tok_7zzzzzzzzzzzzzzzzzzzzzzzzz", shardid.HomeShard},
	} {
		if c.id.String() != c.want || c.id.Shard() != c.shard {
			t.Errorf("got %v on %d, want %v on %d", c.id, c.id.Shard(), c.want, c.shard)
		}
		if parsed, err := shardid.Parse(c.want); err != nil || parsed != c.id {
			t.Errorf("Parse(%q) is %#v, %v; want %#v", c.want, parsed, err, c.id)
		}
	}
}

func TestMintRefusesShardsThatAreNone(t *testing.T) { // SHD-3
	t.Parallel()
	for _, shard := range []int{-1, shardid.HomeShard, shardid.MaxShard + 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("minted on shard %d", shard)
				}
			}()
			shardid.NewInstance(shard, ulid.ULID{})
		}()
	}
}

func TestZeroID(t *testing.T) {
	t.Parallel()
	var id shardid.ID
	if !id.IsZero() || id.String() != "" || id.Kind().String() != "unknown" || len(id.Append(nil)) != 0 {
		t.Errorf("zero id is %#v", id)
	}
}

func TestParseAllocatesNothing(t *testing.T) { //nolint:paralleltest // AllocsPerRun refuses to run in parallel.
	const text = "wfi.s3.01k6zqk3v8r5d1f0m9c2x7y4ab"
	if n := testing.AllocsPerRun(100, func() {
		if _, err := shardid.Parse(text); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParse(f *testing.F) { // SHD-3
	fixtures := loadFixture(f)
	for _, c := range append(fixtures.Valid, fixtures.Legacy...) {
		f.Add(c.ID)
	}
	for _, c := range fixtures.Broken {
		f.Add(c.ID)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := shardid.Parse(text)
		instance, instanceErr := shardid.ParseInstance(text)
		token, tokenErr := shardid.ParseToken(text)
		if err != nil {
			if !id.IsZero() || instanceErr == nil || tokenErr == nil {
				t.Fatalf("%q: refused by Parse alone: %v, %v, %v", text, err, instanceErr, tokenErr)
			}
			return
		}
		if len(text) > shardid.MaxLength {
			t.Fatalf("%d characters accepted", len(text))
		}
		if id.String() != text || string(id.Append([]byte("x"))) != "x"+text {
			t.Fatalf("%q prints as %q", text, id)
		}
		if id.IsLegacy() != (id.Shard() == shardid.HomeShard) || id.Shard() < shardid.HomeShard {
			t.Fatalf("%q is on shard %d", text, id.Shard())
		}
		if instanceErr != nil && tokenErr != nil {
			t.Fatalf("%q is neither instance nor token", text)
		}
		if instanceErr == nil && instance != id || tokenErr == nil && instanceErr != nil && token != id {
			t.Fatalf("%q: %#v, %#v, %#v", text, id, instance, token)
		}
		derived := id.Token(ulid.ULID{1})
		if again, err := shardid.ParseToken(derived.String()); err != nil || again != derived || again.Route(9) != id.Route(9) {
			t.Fatalf("%q: its token %v parses as %v, %v", text, derived, again, err)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for name, text := range map[string]string{
		"sharded":     "wfi.s3.01k6zqk3v8r5d1f0m9c2x7y4ab",
		"bare":        "wfi_7f3c1b9e-0d5e-4f0a-9b7e-2f6f0c1d2e3a",
		"coordinator": "acme.c1.e12.s3.01k6zqk3v8r5d1f0m9c2x7y4ab",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := shardid.Parse(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkString(b *testing.B) {
	id := shardid.NewInstance(3, ulid.ULID{1, 2, 3})
	b.ReportAllocs()
	for b.Loop() {
		_ = id.String()
	}
}
