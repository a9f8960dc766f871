package archtest

// Patterns name packages: ./x is the repository's folder x, anything else an import path. `*` stands for one segment or a
// part of it, `...` for any number of segments (and ./x/... for x too). `std` is the standard library and `outside` every
// module but ours. In allow, `$1` is what the first `*` of from stood for.

// importRule says what the packages that match from may import.
type importRule struct {
	name    string
	from    []string // packages that it is about
	except  []string // of those, not these
	allow   []string // all that they may import; without it all but deny
	deny    []string // what they may not import
	reach   bool     // also what they import through other packages of the repository
	tests   bool     // test files are held to it too
	inTests []string // what test files may import on top of allow
	because string
}

// core lists the pure packages: no input or output, no clock, no goroutine.
var core = []string{
	"./services/instances/internal/machine/...", "./pkg/placement/...", "./pkg/topology/...", "./proto/definition/...",
	"./services/leader/internal/schedule/...",
}

var importRules = []importRule{
	{
		name:    "proto-is-a-leaf",
		from:    []string{"./proto/..."},
		allow:   []string{"std", "outside", "./proto/..."},
		tests:   true,
		because: "everyone depends on proto, users' programs too, so it depends on nothing of ours",
	},
	{
		name:    "pkg-knows-no-service",
		from:    []string{"./pkg/..."},
		allow:   []string{"std", "outside", "./pkg/...", "./proto/..."},
		tests:   true,
		inTests: []string{"./internal/pgtest/...", "./internal/devstack/..."},
		because: "what services share must not know one of them, or they depend on each other through it",
	},
	{
		name:    "services-stand-alone",
		from:    []string{"./services/*/..."},
		allow:   []string{"std", "outside", "./pkg/...", "./proto/...", "./services/$1/..."},
		tests:   true,
		inTests: []string{"./internal/pgtest/...", "./internal/devstack/..."},
		because: "each service is a process, an image and a scaling unit of its own; they meet over proto",
	},
	{
		name:    "internal-assembles",
		from:    []string{"./internal/..."},
		allow:   []string{"std", "outside", "./internal/...", "./services/...", "./pkg/...", "./proto/...", "./sdk/go/..."},
		tests:   true,
		because: "internal puts processes together; it is below the commands and above all the rest",
	},
	{
		name: "test-server-is-no-command",
		from: []string{"./wiggletest/..."},
		allow: []string{
			"std", "outside", "./internal/...", "./services/...", "./pkg/...", "./proto/...", "./sdk/go/...", "./wiggletest/...",
		},
		tests:   true,
		because: "users' tests run the engine by it, in their process: nothing of a command line belongs there",
	},
	{
		name:    "commands-are-thin",
		from:    []string{"./cmd/..."},
		allow:   []string{"std", "./internal/..."},
		tests:   true,
		because: "a main hands its arguments to a package that tests can call",
	},
	{
		name: "sdk-depends-on-little",
		from: []string{"./sdk/go/..."},
		allow: []string{
			"std", "./sdk/go/...", "./proto/...",
			"connectrpc.com/connect",
			"github.com/oklog/ulid/v2",
			"google.golang.org/protobuf/...",
			"go.opentelemetry.io/otel",
			"go.opentelemetry.io/otel/attribute",
			"go.opentelemetry.io/otel/baggage",
			"go.opentelemetry.io/otel/codes",
			"go.opentelemetry.io/otel/metric",
			"go.opentelemetry.io/otel/metric/noop",
			"go.opentelemetry.io/otel/propagation",
			"go.opentelemetry.io/otel/trace",
			"go.opentelemetry.io/otel/trace/noop",
		},
		tests:   true,
		inTests: []string{"outside"},
		because: "what the SDK imports, every user's program inherits, with its version conflicts",
	},
	{
		name:    "examples-use-the-sdk",
		from:    []string{"./examples/..."},
		allow:   []string{"std", "outside", "./sdk/go/..."},
		inTests: []string{"./wiggletest/..."},
		tests:   true,
		because: "an example must work when it is copied into a user's module",
	},
	{
		name:    "nats-server-in-devstack",
		from:    []string{"./..."},
		except:  []string{"./internal/devstack/...", "./test/..."},
		deny:    []string{"github.com/nats-io/nats-server/..."},
		because: "services talk to NATS, they do not contain it; only the dev stack and tests embed the server",
	},
	{
		name:    "postgres-server-in-devstack",
		from:    []string{"./..."},
		except:  []string{"./internal/devstack/...", "./test/..."},
		deny:    []string{"github.com/fergusstrange/embedded-postgres"},
		because: "production never fetches a database",
	},
	{
		name: "pgx-in-stores",
		from: []string{"./..."},
		except: []string{
			"./pkg/postgres/...", "./services/*/internal/*store*/...", "./services/*/migrations/...",
			"./internal/devstack/...", "./internal/pgtest/...", "./test/...",
		},
		deny:    []string{"github.com/jackc/pgx/...", "database/sql/...", "github.com/pressly/goose/...", "github.com/lib/pq/..."},
		because: "SQL, its errors and its retries stay where a store owns them; the rest speaks of instances and tokens",
	},
	{
		name: "core-reaches-no-io",
		from: core,
		deny: []string{
			"github.com/jackc/pgx/...", "database/sql/...", "github.com/nats-io/...", "connectrpc.com/...", "google.golang.org/grpc/...",
			"net", "net/http/...", "os/exec", "go.opentelemetry.io/...", "./pkg/postgres/...",
		},
		reach:   true,
		because: "a pure core is what makes batches, simulation and the in-memory test server possible (ENG-1)",
	},
	{
		name:    "machine-is-deterministic",
		from:    []string{"./services/instances/internal/machine/..."},
		deny:    []string{"log/slog", "log", "os", "io/fs", "sync", "sync/atomic", "math/rand", "math/rand/v2", "crypto/rand", "context"},
		because: "the machine is a function of definition, state, event and time: the same history ends the same",
	},
	{
		name:   "testing-in-tests",
		from:   []string{"./..."},
		except: testPackages,
		deny: []string{
			"testing/...", "go.uber.org/goleak", "pgregory.net/rapid", "github.com/stretchr/testify/...", "github.com/google/go-cmp/...",
		},
		because: "what only tests need is not linked into what ships; helpers for tests live in a package named ...test",
	},
}

// callRule forbids calls in the non-test code of packages.
type callRule struct {
	name    string
	from    []string
	pkg     string
	funcs   []string
	because string
}

var callRules = []callRule{
	{
		name:    "core-reads-no-clock",
		from:    core,
		pkg:     "time",
		funcs:   []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
		because: "time is an argument: it comes from the database in production and from the test in tests",
	},
}

// testPackages exist for tests, whose process is theirs alone.
var testPackages = []string{"./...test", "./...test/...", "./internal/testcluster/...", "./test/..."}

// stateRule forbids package-level variables, outside testPackages, by what their type or value mentions.
type stateRule struct {
	pkg   string
	names []string // nil: any
}

var stateRules = []stateRule{
	{"log/slog", []string{"Logger", "Handler", "New", "Default", "With", "NewJSONHandler", "NewTextHandler"}},
	{"log", nil},
	{"go.opentelemetry.io/otel", nil},
	{"go.opentelemetry.io/otel/metric", nil},
	{"go.opentelemetry.io/otel/trace", []string{"Tracer", "TracerProvider", "Span"}},
	{"github.com/prometheus/client_golang/prometheus", nil},
	{"github.com/prometheus/client_golang/prometheus/promauto", nil},
	{"sync", []string{"Mutex", "RWMutex", "Map"}},
	{"sync/atomic", nil},
}

// vagueNames say nothing about what a package is for.
var vagueNames = []string{"util", "utils", "common", "helper", "helpers", "types", "model", "models", "misc", "base", "shared", "lib"}

// documented lists the packages whose every exported name is documented: their readers are not their authors.
var documented = []string{"./pkg/...", "./sdk/go/..."}

// Sizes past which a reader loses the thread. Generated files are not counted. A package's are lines of code without
// its tests and comments; those of testPackages are as long as their scenarios are many.
const (
	maxFileLines    = 600
	maxPackageLines = 2500
)

// exception lets the findings of one rule through in the files or packages that match where. One that lets nothing
// through is itself a finding.
type exception struct {
	rule    string
	where   string
	because string
}

var exceptions = []exception{
	{
		rule:    "packages-are-small",
		where:   "./sdk/go",
		because: "users import one package and read one page of go doc; client, worker and builder share its types",
	},
}
