package wiggle

import (
	"fmt"
	"path/filepath"
	"runtime"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

// Flow is what a flow is written on: each call adds to the end of the chain. The
// function given to [Define] gets the flow's own chain; the function of a branch,
// a loop or a case gets the chain inside it, and must use that one.
//
// A step is named, uniquely in the workflow; its name is what workers bind a
// handler to, and what history and portal show.
type Flow struct {
	draft *draft
	stmts []stmt
}

// Task adds a step whose result replaces the context. See [HandleTask].
func (f *Flow) Task(name string, opts ...StepOption) {
	f.add(&taskStmt{step: f.step("task", name, opts)})
}

// Effect adds a step that runs for what it does; the context stays as it is. See
// [HandleEffect].
func (f *Flow) Effect(name string, opts ...StepOption) {
	f.add(&taskStmt{step: f.step("effect", name, opts), effect: true})
}

// Gate adds a step that answers true or false. See [HandleGate]. On true the flow
// goes on. On false the instance ends well, or in a branch the branch ends and
// arrives without a result, unless [Gate.Otherwise] says what happens instead.
func (f *Flow) Gate(name string, opts ...StepOption) *Gate {
	g := &gateStmt{step: f.step("gate", name, opts)}
	f.add(g)
	return &Gate{flow: f, stmt: g}
}

// Gate is a gate of a flow.
type Gate struct {
	flow *Flow
	stmt *gateStmt
}

// Otherwise says what runs when the gate answers false. After it the flow goes on
// with what follows the gate, unless the chain ends with [Flow.End] or
// [Flow.Fail].
func (g *Gate) Otherwise(build func(f *Flow)) {
	at := caller()
	if g.stmt.otherwise != nil {
		g.flow.draft.problemf(at, "gate %q has two Otherwise", g.stmt.step.name)
		return
	}
	g.stmt.otherwise = g.flow.draft.chain(at, "Otherwise", build)
	if len(g.stmt.otherwise.stmts) == 0 {
		g.flow.draft.problemf(at, "Otherwise of gate %q has no step: use f.End() to end, or f.Fail(reason)", g.stmt.step.name)
	}
}

// If adds a gate that decides whether a chain runs: on true it does, on false it
// is passed over, or the chain of [If.Else] runs instead. Either way the flow
// goes on with what follows. See [HandleGate].
func (f *Flow) If(name string, then func(f *Flow), opts ...StepOption) *If {
	at := caller()
	g := &gateStmt{step: f.step("gate", name, opts), branches: true}
	f.add(g)
	g.then = f.draft.chain(at, "If", then)
	if len(g.then.stmts) == 0 {
		f.draft.problemf(at, "If %q has no step to run", name)
	}
	return &If{flow: f, stmt: g}
}

// If is an if of a flow.
type If struct {
	flow *Flow
	stmt *gateStmt
}

// Else says what runs when the gate answers false.
func (i *If) Else(build func(f *Flow)) {
	at := caller()
	if i.stmt.otherwise != nil {
		i.flow.draft.problemf(at, "If %q has two Else", i.stmt.step.name)
		return
	}
	i.stmt.otherwise = i.flow.draft.chain(at, "Else", build)
}

// Choose adds a step that answers with the name of one of its cases. See
// [HandleChoose]. After the case's chain the flow goes on with what follows.
func (f *Flow) Choose(name string, opts ...StepOption) *Choice {
	c := &chooseStmt{step: f.step("choose", name, opts)}
	f.add(c)
	return &Choice{flow: f, stmt: c}
}

// Choice is a choose of a flow.
type Choice struct {
	flow *Flow
	stmt *chooseStmt
}

// Case says what runs when the step answers with the name. A chain without a step
// goes straight on with what follows.
func (c *Choice) Case(name string, build func(f *Flow)) *Choice {
	at := caller()
	for _, k := range c.stmt.cases {
		if k.name == name {
			c.flow.draft.problemf(at, "choose %q has case %q twice, first at %s", c.stmt.step.name, name, k.at)
		}
	}
	c.stmt.cases = append(c.stmt.cases, namedChain{name: name, at: at, flow: c.flow.draft.chain(at, "Case", build)})
	return c
}

// Default says what runs when the step answers with anything else. Without it
// such an answer fails the instance.
func (c *Choice) Default(build func(f *Flow)) {
	at := caller()
	if c.stmt.fallback != nil {
		c.flow.draft.problemf(at, "choose %q has two Default", c.stmt.step.name)
	}
	c.stmt.fallback = c.flow.draft.chain(at, "Default", build)
}

// Sleep adds a pause of the given length, kept by the server: it costs nothing
// and survives everything.
func (f *Flow) Sleep(d time.Duration) {
	at := caller()
	if d < 0 {
		f.draft.problemf(at, "Sleep of a negative time, %s", d)
	}
	f.add(&sleepStmt{base: base{at}, duration: d})
}

// SleepUntil adds a pause until an instant in the context, found by a JSON
// Pointer such as "/delivery/notBefore": an RFC 3339 string or a number of
// seconds since 1970. An instant in the past does not wait.
func (f *Flow) SleepUntil(pointer string) {
	at := caller()
	f.draft.checkPointer(at, "SleepUntil", pointer)
	f.add(&sleepStmt{base: base{at}, instant: pointer, until: true})
}

// Fork adds parallel branches, two or more. Each starts with the context as it is
// and none sees what another writes. The [Fork.Combine] that must follow makes
// their results into one context.
func (f *Flow) Fork(branches ...ForkBranch) *Fork {
	at := caller()
	s := &forkStmt{base: base{at}}
	f.add(s)
	if len(branches) < 2 {
		f.draft.problemf(at, "Fork has %d branch(es), it needs two or more", len(branches))
	}
	for _, b := range branches {
		for _, k := range s.branches {
			if k.name == b.name {
				f.draft.problemf(b.at, "Fork has branch %q twice, first at %s", b.name, k.at)
			}
		}
		if b.name == "" {
			f.draft.problemf(b.at, "Branch without a name")
		}
		chain := f.draft.chain(b.at, "Branch", b.build)
		if len(chain.stmts) == 0 {
			f.draft.problemf(b.at, "Branch %q has no step", b.name)
		}
		s.branches = append(s.branches, namedChain{name: b.name, at: b.at, flow: chain})
	}
	return &Fork{flow: f, stmt: s}
}

// ForkBranch is one branch of a [Flow.Fork], made by [Branch].
type ForkBranch struct {
	name  string
	at    string
	build func(*Flow)
}

// Branch is a branch of a fork. The combine gets its result by the name.
func Branch(name string, build func(f *Flow)) ForkBranch {
	return ForkBranch{name: name, at: caller(), build: build}
}

// Fork is a fork that is not complete without [Fork.Combine].
type Fork struct {
	flow *Flow
	stmt *forkStmt
}

// Combine names the step that gets the context from before the fork and every
// branch's result, and returns the context after it. See [HandleCombine].
func (k *Fork) Combine(name string, opts ...StepOption) {
	k.stmt.combine = k.flow.combine(k.stmt.combine, name, opts)
}

// ForEach adds a branch for each element of a list or map in the context, found
// by a JSON Pointer such as "/lines" ("" is the whole context). A branch's context is
// its element. The [ForEach.Combine] that must follow makes their results into one
// context. An empty or absent collection goes on after the combine without it.
func (f *Flow) ForEach(pointer string, build func(f *Flow), opts ...ForEachOption) *ForEach {
	at := caller()
	f.draft.checkPointer(at, "ForEach", pointer)
	s := &forEachStmt{base: base{at}, items: pointer}
	for _, o := range opts {
		o(s)
	}
	if s.maxInFlight < 0 {
		f.draft.problemf(at, "MaxInFlight(%d) is negative", s.maxInFlight)
	}
	f.add(s)
	s.body = f.draft.chain(at, "ForEach", build)
	if len(s.body.stmts) == 0 {
		f.draft.problemf(at, "ForEach over %q has no step", pointer)
	}
	return &ForEach{flow: f, stmt: s}
}

// ForEach is a for_each that is not complete without [ForEach.Combine].
type ForEach struct {
	flow *Flow
	stmt *forEachStmt
}

// Combine names the step that gets the context from before the for_each and every
// element's result, and returns the context after it. See [HandleCombineList] and
// [HandleCombineMap].
func (e *ForEach) Combine(name string, opts ...StepOption) {
	e.stmt.combine = e.flow.combine(e.stmt.combine, name, opts)
}

// Repeat adds a loop: the chain, then the gate of [Loop.Until] or [Loop.While] that
// must follow, which decides whether the chain runs again.
func (f *Flow) Repeat(build func(f *Flow), opts ...RepeatOption) *Loop {
	at := caller()
	s := &repeatStmt{base: base{at}}
	for _, o := range opts {
		o(s)
	}
	if s.badBudget {
		f.draft.problemf(at, "Budget(%d) must be 1 or more", s.budget)
	}
	f.add(s)
	s.body = f.draft.chain(at, "Repeat", build)
	return &Loop{flow: f, stmt: s}
}

// Loop is a loop that is not complete without [Loop.Until] or [Loop.While].
type Loop struct {
	flow *Flow
	stmt *repeatStmt
}

// Until names the gate that ends the loop by answering true. See [HandleGate].
func (l *Loop) Until(name string, opts ...StepOption) {
	l.close(name, opts, true)
}

// While names the gate that ends the loop by answering false. See [HandleGate].
func (l *Loop) While(name string, opts ...StepOption) {
	l.close(name, opts, false)
}

func (l *Loop) close(name string, opts []StepOption, until bool) {
	step := l.flow.stepAt(callerOf(3), "gate", name, opts)
	if l.stmt.gate != nil {
		l.flow.draft.problemf(step.at, "Repeat has two gates, the first at %s", l.stmt.gate.at)
		return
	}
	l.stmt.gate, l.stmt.until = step, until
}

// End ends the instance well, or in a branch the branch, which arrives with its
// context as its result. A chain that just stops goes on with what follows it, so
// End is only needed to leave early.
func (f *Flow) End() {
	f.add(&endStmt{base: base{caller()}})
}

// Fail fails the instance, with the reason for people.
func (f *Flow) Fail(reason string) {
	f.add(&endStmt{base: base{caller()}, failed: true, reason: reason})
}

func (f *Flow) add(s stmt) {
	if f.draft.closed {
		panic("wiggle: a Flow is used after its Define has returned")
	}
	if f.draft.current != f {
		f.draft.problemf(s.place(), "%s is added to the chain around: use the *Flow of the innermost function", s.what())
		return
	}
	f.stmts = append(f.stmts, s)
}

// step must be called by an exported method directly: the place it notes is that
// method's caller.
func (f *Flow) step(what, name string, opts []StepOption) *step {
	return f.stepAt(callerOf(3), what, name, opts)
}

func (f *Flow) stepAt(at, what, name string, opts []StepOption) *step {
	s := &step{at: at, what: what, name: name, settings: &wigglev1.Step{}}
	for _, o := range opts {
		o.applyStep(s.settings)
	}
	f.draft.declare(s)
	return s
}

func (f *Flow) combine(before *step, name string, opts []StepOption) *step {
	s := f.stepAt(callerOf(3), "combine", name, opts)
	if before != nil {
		f.draft.problemf(s.at, "a second Combine, the first is at %s", before.at)
		return before
	}
	return s
}

// caller is the place that called the exported function which calls it.
func caller() string { return callerOf(3) }

func callerOf(skip int) string {
	_, file, line, ok := runtime.Caller(skip)
	if !ok {
		return "unknown place"
	}
	return fmt.Sprintf("%s:%d", filepath.Base(file), line)
}
