package wiggle_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// orderFulfilment is the flow of the design (WF-20) and of the README.
func orderFulfilment() *wiggle.Definition {
	return wiggle.Define("order-fulfilment", func(f *wiggle.Flow) {
		f.Task("validate")
		f.Gate("in-stock")
		f.Fork(
			wiggle.Branch("payment", func(f *wiggle.Flow) {
				f.Task("authorise", wiggle.Retry(5, 100*time.Millisecond))
				f.Task("capture")
			}),
			wiggle.Branch("shipping", func(f *wiggle.Flow) {
				f.Task("reserve")
				f.Sleep(300 * time.Millisecond)
				f.Task("label")
			}),
		).Combine("merge")
		f.Task("notify")
	})
}

// everything uses each word of the builder at least once.
func everything() *wiggle.Definition {
	return wiggle.Define("everything",
		func(f *wiggle.Flow) {
			f.Sleep(time.Minute)
			f.Task("load the order", wiggle.Queue("io"), wiggle.Timeout(time.Minute), wiggle.Priority(9), wiggle.Activity("load"))
			f.Gate("still wanted").Otherwise(func(f *wiggle.Flow) {
				f.Effect("apologise")
				f.Fail("nobody wants it")
			})
			f.If("is-gift", func(f *wiggle.Flow) { f.Task("wrap") }).Else(func(f *wiggle.Flow) { f.Effect("note") })
			f.If("is-large", func(f *wiggle.Flow) { f.SleepUntil("/truck/at"); f.Sleep(time.Second) })
			f.Choose("carrier").
				Case("post", func(f *wiggle.Flow) { f.Task("stamp") }).
				Case("self pickup", func(*wiggle.Flow) {}).
				Case("gone", func(f *wiggle.Flow) { f.End() }).
				Default(func(f *wiggle.Flow) { f.Sleep(time.Hour); f.Task("ask") })
			f.ForEach("/lines", func(f *wiggle.Flow) {
				f.Task("price", wiggle.RetryPolicy{
					MaxAttempts: 3, InitialBackoff: time.Second, Multiplier: 1.5, MaxBackoff: time.Minute, NoJitter: true,
					NonRetryable: []string{"no-such-article"},
				})
				f.Fork(
					wiggle.Branch("tax", func(f *wiggle.Flow) { f.Task("tax") }),
					wiggle.Branch("discount", func(f *wiggle.Flow) { f.Gate("has-coupon"); f.Task("discount") }),
				).Combine("line-total")
			}, wiggle.MaxInFlight(8)).Combine("total", wiggle.Queue("sums"))
			f.Repeat(func(f *wiggle.Flow) {
				f.Task("ask-bank")
				f.Sleep(time.Second)
			}, wiggle.Budget(50)).Until("paid")
			f.Repeat(func(*wiggle.Flow) {}).While("more")
			f.Task("close")
		},
		wiggle.Version(3), wiggle.DefaultQueue("orders"), wiggle.DefaultTimeout(10*time.Minute),
		wiggle.DefaultRetry(wiggle.RetryPolicy{MaxAttempts: 10, Jitter: 0.5}),
	)
}

func TestDefineGolden(t *testing.T) {
	t.Parallel()
	for _, def := range []*wiggle.Definition{orderFulfilment(), everything()} {
		t.Run(def.Name(), func(t *testing.T) {
			t.Parallel()
			raw, err := json.Marshal(def)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := json.Indent(&got, raw, "", "  "); err != nil {
				t.Fatal(err)
			}
			got.WriteByte('\n')
			file := filepath.Join("testdata", def.Name()+".json")
			if *update {
				if err := os.WriteFile(file, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%s differs (-update rewrites it); got:\n%s", file, &got)
			}
		})
	}
}

func TestDefineIsTheSameEachTime(t *testing.T) {
	t.Parallel()
	first := everything()
	for range 20 {
		again := everything()
		if !proto.Equal(first.Proto(), again.Proto()) || first.Fingerprint() != again.Fingerprint() {
			t.Fatal("the same program made another graph")
		}
	}
	if orderFulfilment().Fingerprint() == first.Fingerprint() {
		t.Error("different graphs have the same fingerprint")
	}
	if first.Version() != 3 || first.Name() != "everything" {
		t.Errorf("name %q, version %d", first.Name(), first.Version())
	}
}

func TestFromProto(t *testing.T) {
	t.Parallel()
	def := everything()
	msg := def.Proto()
	again, err := wiggle.FromProto(msg)
	if err != nil {
		t.Fatal(err)
	}
	if again.Fingerprint() != def.Fingerprint() {
		t.Error("another fingerprint")
	}
	msg.Start = "nowhere"
	if again.Proto().GetStart() == "nowhere" {
		t.Error("the definition shares the caller's message")
	}
	_, err = wiggle.FromProto(msg)
	var wrong *wiggle.DefinitionError
	if !errors.As(err, &wrong) || !errors.Is(err, wiggle.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func task(name string) func(*wiggle.Flow) { return func(f *wiggle.Flow) { f.Task(name) } }

// TestDefineTellsWhatIsWrong also checks that the place told is a line of this file.
func TestDefineTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		flow func(f *wiggle.Flow)
		want []string
	}{
		"nothing":           {func(*wiggle.Flow) {}, []string{"the flow has no step"}},
		"no function":       {nil, []string{"Define without a function"}},
		"fork not combined": {func(f *wiggle.Flow) { f.Fork(wiggle.Branch("a", task("x")), wiggle.Branch("b", task("y"))) }, []string{`Fork of "a", "b" has no Combine`}},
		"each not combined": {func(f *wiggle.Flow) { f.ForEach("/l", task("x")) }, []string{`ForEach over "/l" has no Combine`}},
		"nested, not combined": {func(f *wiggle.Flow) {
			f.ForEach("/l", func(f *wiggle.Flow) { f.ForEach("/m", task("x")) }).Combine("c")
		}, []string{`ForEach over "/m" has no Combine`}},
		"loop not closed": {func(f *wiggle.Flow) { f.Repeat(task("x")) }, []string{"Repeat has no gate"}},
		"one branch":      {func(f *wiggle.Flow) { f.Fork(wiggle.Branch("a", task("x"))).Combine("c") }, []string{"Fork has 1 branch(es)"}},
		"branches alike": {func(f *wiggle.Flow) {
			f.Fork(wiggle.Branch("a", task("x")), wiggle.Branch("a", task("y"))).Combine("c")
		}, []string{`branch "a" twice`}},
		"branch empty":     {func(f *wiggle.Flow) { f.Fork(wiggle.Branch("a", task("x")), wiggle.Branch("b", nil)).Combine("c") }, []string{"Branch without a function", `Branch "b" has no step`}},
		"branch blank":     {func(f *wiggle.Flow) { f.Fork(wiggle.Branch("", task("x")), wiggle.Branch("b", task("y"))).Combine("c") }, []string{"Branch without a name"}},
		"each empty":       {func(f *wiggle.Flow) { f.ForEach("/l", func(*wiggle.Flow) {}).Combine("c") }, []string{"has no step"}},
		"pointer":          {func(f *wiggle.Flow) { f.ForEach("lines", task("x")).Combine("c"); f.SleepUntil("/a~2") }, []string{`ForEach: the JSON Pointer "lines"`, "SleepUntil: the JSON Pointer"}},
		"max in flight":    {func(f *wiggle.Flow) { f.ForEach("/l", task("x"), wiggle.MaxInFlight(-1)).Combine("c") }, []string{"MaxInFlight(-1) is negative"}},
		"two combines":     {func(f *wiggle.Flow) { k := f.ForEach("/l", task("x")); k.Combine("c"); k.Combine("d") }, []string{"a second Combine"}},
		"two gates":        {func(f *wiggle.Flow) { k := f.Repeat(task("x")); k.Until("c"); k.While("d") }, []string{"Repeat has two gates"}},
		"budget":           {func(f *wiggle.Flow) { f.Repeat(task("x"), wiggle.Budget(0)).Until("g") }, []string{"Budget(0) must be 1 or more"}},
		"names alike":      {func(f *wiggle.Flow) { f.Task("x"); f.Effect("x") }, []string{`a second step with the name "x", the first is the task at define_test.go:`}},
		"name blank":       {func(f *wiggle.Flow) { f.Gate(" ") }, []string{"gate without a name"}},
		"after the end":    {func(f *wiggle.Flow) { f.Task("x"); f.End(); f.Task("y") }, []string{`task "y" can not be reached`}},
		"after every case": {func(f *wiggle.Flow) { f.Choose("c").Case("a", func(f *wiggle.Flow) { f.Fail("no") }); f.Task("y") }, []string{`task "y" can not be reached`}},
		"loop that ends":   {func(f *wiggle.Flow) { f.Repeat(func(f *wiggle.Flow) { f.End() }).Until("g") }, []string{`gate "g" can not be reached`}},
		"no case":          {func(f *wiggle.Flow) { f.Choose("c") }, []string{`choose "c" has no Case`}},
		"case twice":       {func(f *wiggle.Flow) { f.Choose("c").Case("a", task("x")).Case("a", task("y")) }, []string{`case "a" twice`}},
		"two defaults": {func(f *wiggle.Flow) {
			c := f.Choose("c").Case("a", task("x"))
			c.Default(task("y"))
			c.Default(task("z"))
		}, []string{"two Default"}},
		"two otherwise":   {func(f *wiggle.Flow) { g := f.Gate("g"); g.Otherwise(task("y")); g.Otherwise(task("z")) }, []string{"two Otherwise"}},
		"otherwise empty": {func(f *wiggle.Flow) { f.Gate("g").Otherwise(func(*wiggle.Flow) {}) }, []string{"has no step: use f.End()"}},
		"if empty":        {func(f *wiggle.Flow) { f.If("g", func(*wiggle.Flow) {}) }, []string{`If "g" has no step`}},
		"two else":        {func(f *wiggle.Flow) { i := f.If("g", task("x")); i.Else(task("y")); i.Else(task("z")) }, []string{"two Else"}},
		"negative sleep":  {func(f *wiggle.Flow) { f.Sleep(-time.Second) }, []string{"negative"}},
		"priority":        {func(f *wiggle.Flow) { f.Task("x", wiggle.Priority(10)) }, []string{"priority"}},
		"timeout":         {func(f *wiggle.Flow) { f.Task("x", wiggle.Timeout(-1)) }, []string{"timeout"}},
		"attempts":        {func(f *wiggle.Flow) { f.Task("x", wiggle.Retry(-1, 0)) }, []string{"attempts"}},
		"the flow around": {func(outer *wiggle.Flow) {
			outer.ForEach("/l", func(inner *wiggle.Flow) { inner.Task("x"); outer.Task("y") }).Combine("c")
		}, []string{`task "y" is added to the chain around`}},
		"many at once": {func(f *wiggle.Flow) {
			f.Task("x")
			f.Task("x")
			f.ForEach("/l", task("y"))
			f.Repeat(task("z"))
		}, []string{"a second step", "has no Combine", "has no gate"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			def, err := wiggle.DefineE("wrong", tt.flow)
			var wrong *wiggle.DefinitionError
			if !errors.As(err, &wrong) || def != nil {
				t.Fatalf("got %v, %v", def, err)
			}
			if len(wrong.Problems) != len(tt.want) {
				t.Errorf("%d problems, want %d:\n%v", len(wrong.Problems), len(tt.want), err)
			}
			for i, p := range wrong.Problems {
				if !strings.HasPrefix(p.Where, "define_test.go:") {
					t.Errorf("problem %q has no place in the source", p)
				}
				if i < len(tt.want) && !strings.Contains(strings.ToLower(p.Message), strings.ToLower(tt.want[i])) {
					t.Errorf("problem %q, want %q in it", p, tt.want[i])
				}
			}
		})
	}
}

func TestDefineRefusesBadNames(t *testing.T) {
	t.Parallel()
	if _, err := wiggle.DefineE("no blanks here", task("x")); !errors.Is(err, wiggle.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if _, err := wiggle.DefineE("v", task("x"), wiggle.Version(-1)); !errors.Is(err, wiggle.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestDefinePanics(t *testing.T) {
	t.Parallel()
	defer func() {
		err, _ := recover().(error)
		var wrong *wiggle.DefinitionError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), `workflow "wrong" is not valid:`+"\n\tdefine_test.go:") {
			t.Errorf("panic %v", err)
		}
	}()
	wiggle.Define("wrong", func(f *wiggle.Flow) { f.Repeat(task("x")) })
}

func TestFlowAfterDefinePanics(t *testing.T) {
	t.Parallel()
	var kept *wiggle.Flow
	wiggle.Define("kept", func(f *wiggle.Flow) { f.Task("x"); kept = f })
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	kept.Task("y")
}

// TestStepNames checks that any name makes a valid id, and that names which make the
// same id stay apart.
func TestStepNames(t *testing.T) {
	t.Parallel()
	def := wiggle.Define("names", func(f *wiggle.Flow) {
		f.Task("end") // the id that the end node would like
		f.Task("Bestellung prüfen")
		f.Task("Bestellung_pr fen")
		f.Task("Bestellung pr/fen")
		f.Task("日本")
		f.Task("a.sleep")
		f.Task("a")
		f.Sleep(time.Second)
		f.Task(strings.Repeat("a long name ", 10) + "ends")
	})
	for id, want := range map[string]string{
		"end": "", "Bestellung-pr-fen": "Bestellung prüfen", "Bestellung-pr-fen-2": "Bestellung pr/fen",
		"Bestellung_pr-fen": "Bestellung_pr fen", "step": "日本", "a": "", "a.sleep": "",
	} {
		n := def.Proto().GetNodes()[id]
		if n.GetTask() == nil || n.GetTask().GetStep().GetName() != want {
			t.Errorf("node %q is %v, want a task named %q", id, n, want)
		}
	}
	if def.Proto().GetNodes()["a.sleep-2"].GetSleep() == nil || def.Proto().GetNodes()["end-2"].GetEnd() == nil {
		t.Errorf("server-run nodes must make way: %v", def.Proto().GetNodes())
	}
}
