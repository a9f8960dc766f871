package demo

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

func TestOrdersAreTheSameForASeed(t *testing.T) {
	t.Parallel()
	if a, b := NewOrders(200, 7), NewOrders(200, 7); !reflect.DeepEqual(a, b) {
		t.Error("one seed makes two lists")
	}
	if reflect.DeepEqual(NewOrders(200, 7), NewOrders(200, 8)) {
		t.Error("two seeds make one list")
	}
}

func TestOrdersVary(t *testing.T) {
	t.Parallel()
	const n = 1000
	names, lines, soldOut, declined := map[string]bool{}, map[int]int{}, 0, 0
	for _, o := range NewOrders(n, 1) {
		names[o.Customer.Name] = true
		lines[len(o.Lines)]++
		if ok, err := inStock(t.Context(), o); err != nil {
			t.Error(err)
		} else if !ok {
			soldOut++
		}
		if o.Card != cardGood {
			declined++
		}
		if _, err := validate(t.Context(), o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if len(names) < 200 || len(lines) != maxLines || soldOut < n/50 || soldOut > n/10 || declined < n/20 || declined > n/5 {
		t.Errorf("%d names, lines %v, %d sold out, %d declined", len(names), lines, soldOut, declined)
	}
}

// TestOneOrder does by hand what the engine does, and checks the sums.
func TestOneOrder(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	o := Order{Number: "W-1", Customer: Customer{Name: "Ada"}, Lines: []Line{{SKU: "tea", Quantity: 2}, {SKU: "mug", Quantity: 3}}}
	o, err := validate(ctx, o)
	if err != nil || o.SubtotalCents != 2*890+3*1650 {
		t.Fatalf("%+v, %v", o, err)
	}
	payment, err := authorise(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	payment, _ = capture(ctx, payment)
	shipment, _ := reserve(ctx, o)
	shipment.Tracking = "N-W-1-1"
	o.Payment, o.Shipment = &payment, &shipment
	lines := make([]Line, len(o.Lines))
	for i, l := range o.Lines {
		if lines[i], err = priceLine(ctx, l); err != nil {
			t.Fatal(err)
		}
	}
	o = total(o, lines)
	// 1780 + 7 % = 1905 (124.6 is 125); 4950 - 5 % (247.5 is 248) = 4702 + 19 % (893.38) = 5595
	if o.TotalCents != 1905+5595 || o.Lines[1].DiscountCents != 248 {
		t.Errorf("total %d, lines %+v", o.TotalCents, o.Lines)
	}
	if err := notify(o); err != nil {
		t.Error(err)
	}
	o.Payment.Captured = false
	if err := notify(o); err == nil {
		t.Error("an order that is not paid is announced")
	}
}

func TestWrongOrdersAreRefused(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Order{
		"customer.name": {Lines: []Line{{SKU: "tea", Quantity: 1}}},
		"no lines":      {Customer: Customer{Name: "A"}},
		`"x"`:           {Customer: Customer{Name: "A"}, Lines: []Line{{SKU: "x", Quantity: 1}}},
		"quantity 0":    {Customer: Customer{Name: "A"}, Lines: []Line{{SKU: "tea"}}},
	} {
		if _, err := validate(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := authorise(t.Context(), Order{Card: "declined-x"}); err == nil {
		t.Error("a card that is none is taken")
	}
	if _, err := authorise(t.Context(), Order{Card: "declined-1"}); err == nil {
		t.Error("a first attempt with declined-1 is taken")
	}
}

// TestShortOrder is what `wiggle dev` tells people to try.
func TestShortOrder(t *testing.T) {
	t.Parallel()
	var o Order
	if err := json.Unmarshal([]byte(`{"customer":{"name":"Ada Lovelace"},"lines":[{"sku":"tea","quantity":2}]}`), &o); err != nil {
		t.Fatal(err)
	}
	if o, err := validate(t.Context(), o); err != nil || o.Card != cardGood || o.Number == "" {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestFlowHasAHandlerForEveryStep(t *testing.T) {
	t.Parallel()
	client, err := wiggle.Dial("http://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	// Making the worker panics for a handler that is registered twice; its check against the flow runs in `wiggle dev`.
	(&Shop{}).Worker(client, wiggle.WorkerOptions{})
	if Flow().Name() != Workflow {
		t.Error("the flow is not what it is called")
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var values []time.Duration
	for i := 200; i >= 1; i-- {
		values = append(values, time.Duration(i))
	}
	for percent, want := range map[int]time.Duration{50: 100, 99: 198, 100: 200} {
		if got := percentile(values, percent); got != want {
			t.Errorf("p%d is %d, want %d", percent, got, want)
		}
	}
	if percentile(nil, 99) != 0 || percentile([]time.Duration{7}, 99) != 7 {
		t.Error("few values")
	}
}

// TestServerAway: a run against nobody ends with an error and says that nothing was started.
func TestServerAway(t *testing.T) {
	t.Parallel()
	client, err := wiggle.Dial("http://127.0.0.1:1", wiggle.WithRetries(1, time.Millisecond, time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if result, err := Run(ctx, client, &Shop{}, Options{Count: 3}); err == nil || result.Started != 0 {
		t.Errorf("%+v, %v", result, err)
	}
}
