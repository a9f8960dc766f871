package steps

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// The activities of the bench's workflows. An instance ends with the step that runs activityLast or activityCombine.
const (
	activityStep    = "bench-step"
	activityLast    = "bench-last"
	activityElement = "bench-element"
	activityCombine = "bench-combine"
)

// ChainName is the workflow of so many steps.
func ChainName(steps int) string { return fmt.Sprintf("bench-chain-%d", steps) }

// BatchedChainName is the workflow of so many steps in batched mode.
func BatchedChainName(steps int) string { return ChainName(steps) + "-batched" }

// Chain is so many tasks, one after the other.
func Chain(steps int) *wiggle.Definition { return wiggle.Define(ChainName(steps), chain(steps)) }

// BatchedChain is Chain in batched mode.
func BatchedChain(steps int) *wiggle.Definition {
	return wiggle.Define(BatchedChainName(steps), chain(steps), wiggle.Batched())
}

func chain(steps int) func(f *wiggle.Flow) {
	return func(f *wiggle.Flow) {
		for i := range steps {
			activity := activityStep
			if i == steps-1 {
				activity = activityLast
			}
			f.Task(fmt.Sprintf("step-%d", i+1), wiggle.Activity(activity))
		}
	}
}

const FanoutName = "bench-fanout"

// Fanout is a task for each element of the context, and a combine.
func Fanout() *wiggle.Definition {
	return wiggle.Define(FanoutName, func(f *wiggle.Flow) {
		f.ForEach("", func(f *wiggle.Flow) {
			f.Task("element", wiggle.Activity(activityElement))
		}).Combine("combine", wiggle.Activity(activityCombine))
	})
}

const (
	TimerName = "bench-timer"
	NapName   = "bench-nap"
	NapTime   = 500 * time.Millisecond
)

// Timer sleeps until the instant in its context, and ends.
func Timer() *wiggle.Definition {
	return wiggle.Define(TimerName, func(f *wiggle.Flow) { f.SleepUntil("/at") })
}

// Nap sleeps for NapTime, and ends.
func Nap() *wiggle.Definition {
	return wiggle.Define(NapName, func(f *wiggle.Flow) { f.Sleep(NapTime) })
}

// MinPayloadBytes has room for what a step changes.
const MinPayloadBytes = 32

// payloadHead begins every context; the digits are what a step changes.
const payloadHead = `{"n":"000000","pad":"`

// Payload is a context of exactly so many bytes of JSON, MinPayloadBytes or more.
func Payload(size int) wiggle.Payload {
	const tail = `"}`
	pad := max(0, size-len(payloadHead)-len(tail))
	return wiggle.Payload{Data: []byte(payloadHead + strings.Repeat("x", pad) + tail)}
}

// Elements is a list of payloads of that size.
func Elements(width, size int) wiggle.Payload {
	one := Payload(size).Data
	var b bytes.Buffer
	b.Grow(width*(len(one)+1) + 1)
	b.WriteByte('[')
	for i := range width {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(one)
	}
	b.WriteByte(']')
	return wiggle.Payload{Data: b.Bytes()}
}

// bump is what a step does: it returns its context with the last digit counted up. One that is no payload of the bench it
// returns as it is.
func bump(in wiggle.Payload) wiggle.Payload {
	const digit = len(`{"n":"000000`) - 1
	if len(in.Data) <= digit || in.Data[digit] < '0' || in.Data[digit] > '9' {
		return in
	}
	out := bytes.Clone(in.Data)
	out[digit] = '0' + (out[digit]-'0'+1)%10
	return wiggle.Payload{ContentType: in.ContentType, Data: out}
}

// TimerContext is the context of a timer.
func TimerContext(at time.Time, size int) wiggle.Payload {
	head := `{"at":` + string(must(json.Marshal(at.UTC().Format(time.RFC3339Nano)))) + `,"pad":"`
	return wiggle.Payload{Data: []byte(head + strings.Repeat("x", max(0, size-len(head)-2)) + `"}`)}
}

// must is for what cannot fail.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
