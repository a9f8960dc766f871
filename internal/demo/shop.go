package demo

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// Shop has the handlers of the workflow and counts what they do. The zero value is ready.
type Shop struct {
	steps   atomic.Int64
	retries atomic.Int64
}

// Steps is how many attempts of steps were made: all that ended, well or not.
func (s *Shop) Steps() int64 { return s.steps.Load() }

// Retries is how many of them were not the first.
func (s *Shop) Retries() int64 { return s.retries.Load() }

// Worker makes a worker that serves the workflow.
func (s *Shop) Worker(client *wiggle.Client, opts wiggle.WorkerOptions) *wiggle.Worker {
	w := wiggle.NewWorker(client, opts)
	h := w.Workflow(Workflow)
	wiggle.HandleTask(h, "validate", counted(s, validate))
	wiggle.HandleGate(h, "in-stock", counted(s, inStock))
	wiggle.HandleTask(h, "authorise", counted(s, authorise))
	wiggle.HandleTask(h, "capture", counted(s, capture))
	wiggle.HandleTask(h, "reserve", counted(s, reserve))
	wiggle.HandleTask(h, "label", counted(s, label))
	wiggle.HandleTask(h, "price-line", counted(s, priceLine))
	wiggle.HandleCombine(h, "merge", func(ctx context.Context, before Order, branches wiggle.Branches) (Order, error) {
		s.count(ctx)
		return merge(before, branches)
	})
	wiggle.HandleCombineList(h, "total", func(ctx context.Context, before Order, lines []wiggle.Elem[Line]) (Order, error) {
		s.count(ctx)
		return total(before, wiggle.Values(lines)), nil
	})
	wiggle.HandleEffect(h, "notify", func(ctx context.Context, o Order) error {
		s.count(ctx)
		return notify(o)
	})
	return w
}

func (s *Shop) count(ctx context.Context) {
	s.steps.Add(1)
	if wiggle.TaskFrom(ctx).Attempt > 1 {
		s.retries.Add(1)
	}
}

func counted[In, Out any](s *Shop, handler func(context.Context, In) (Out, error)) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (Out, error) {
		s.count(ctx)
		return handler(ctx, in)
	}
}

// refuse fails the instance at once: no later attempt makes a wrong order right.
func refuse(format string, args ...any) error {
	return wiggle.ErrorType("OrderRefused", wiggle.NonRetryable(fmt.Errorf(format, args...)))
}

// validate fills in what the catalogue knows and what a short order leaves out.
func validate(ctx context.Context, o Order) (Order, error) {
	if strings.TrimSpace(o.Customer.Name) == "" {
		return o, refuse("the order has no customer.name")
	}
	if len(o.Lines) == 0 {
		return o, refuse("the order has no lines")
	}
	if o.Number == "" {
		id := wiggle.TaskFrom(ctx).InstanceID
		o.Number = "W-" + id[strings.LastIndexByte(id, '.')+1:]
	}
	if o.Card == "" {
		o.Card = cardGood
	}
	o.SubtotalCents = 0
	for i := range o.Lines {
		l := &o.Lines[i]
		a, ok := findArticle(l.SKU)
		switch {
		case !ok:
			return o, refuse("lines[%d]: the shop does not sell %q; it sells %s", i, l.SKU, skus())
		case l.Quantity < 1 || l.Quantity > 1000:
			return o, refuse("lines[%d]: quantity %d is not in 1..1000", i, l.Quantity)
		}
		l.Name, l.UnitCents = a.name, a.cents
		o.SubtotalCents += a.cents * l.Quantity
	}
	return o, nil
}

func skus() string {
	names := make([]string, len(catalogue))
	for i, a := range catalogue {
		names[i] = a.sku
	}
	return strings.Join(names, ", ")
}

// inStock lets an order pass if the warehouse has all of it.
func inStock(_ context.Context, o Order) (bool, error) {
	for _, l := range o.Lines {
		if a, _ := findArticle(l.SKU); a.soldOut {
			return false, nil
		}
	}
	return true, nil
}

var errDeclined = errors.New("the bank declined; try again")

// authorise reserves the money. A card named declined-2 is declined twice.
func authorise(ctx context.Context, o Order) (Payment, error) {
	attempt := max(wiggle.TaskFrom(ctx).Attempt, 1)
	if text, ok := strings.CutPrefix(o.Card, cardDeclined); ok {
		declines, err := strconv.Atoi(text)
		if err != nil {
			return Payment{}, refuse("card %q is none", o.Card)
		}
		if attempt <= declines {
			return Payment{}, wiggle.ErrorType("CardDeclined", errDeclined)
		}
	}
	return Payment{Authorisation: "auth-" + o.Number, AmountCents: o.SubtotalCents, Attempts: attempt}, nil
}

func capture(_ context.Context, p Payment) (Payment, error) {
	p.Captured = true
	return p, nil
}

// itemsPerParcel is what fits into one.
const itemsPerParcel = 6

func reserve(_ context.Context, o Order) (Shipment, error) {
	items := int64(0)
	for _, l := range o.Lines {
		items += l.Quantity
	}
	warehouse := "north"
	if len(o.Customer.City)%2 == 1 {
		warehouse = "south"
	}
	return Shipment{Warehouse: warehouse, Parcels: int((items + itemsPerParcel - 1) / itemsPerParcel)}, nil
}

func label(ctx context.Context, s Shipment) (Shipment, error) {
	o, err := wiggle.BaseContext[Order](ctx)
	if err != nil {
		return s, err
	}
	s.Tracking = fmt.Sprintf("%s-%s-%d", strings.ToUpper(s.Warehouse[:1]), o.Number, s.Parcels)
	return s, nil
}

// merge puts what the branches brought into the order.
func merge(o Order, branches wiggle.Branches) (Order, error) {
	payment, ok, err := wiggle.BranchResult[Payment](branches, "payment")
	if err != nil {
		return o, err
	}
	if ok {
		o.Payment = &payment
	}
	shipment, ok, err := wiggle.BranchResult[Shipment](branches, "shipping")
	if err != nil {
		return o, err
	}
	if ok {
		o.Shipment = &shipment
	}
	return o, nil
}

const (
	// discountFrom is the quantity from which an article is cheaper, by discountBasis.
	discountFrom  = 3
	discountBasis = 500
	// basis is the whole, of which rates are hundredths of a percent.
	basis = 10_000
)

// priceLine is all in integer cents, halves away from zero.
func priceLine(_ context.Context, l Line) (Line, error) {
	a, ok := findArticle(l.SKU)
	if !ok {
		return l, refuse("the shop does not sell %q", l.SKU)
	}
	gross := a.cents * l.Quantity
	l.DiscountCents = 0
	if l.Quantity >= discountFrom {
		l.DiscountCents = share(gross, discountBasis)
	}
	net := gross - l.DiscountCents
	l.TaxCents = share(net, a.taxBasis)
	l.TotalCents = net + l.TaxCents
	return l, nil
}

func share(cents, rate int64) int64 { return (cents*rate + basis/2) / basis }

// total takes the priced lines over and adds them up.
func total(o Order, lines []Line) Order {
	o.Lines, o.TotalCents = lines, 0
	for _, l := range lines {
		o.TotalCents += l.TotalCents
	}
	return o
}

// notify writes the message that a shop would send. An order that went wrong on the way must not be announced.
func notify(o Order) error {
	switch {
	case o.Payment == nil || !o.Payment.Captured:
		return refuse("order %s is not paid", o.Number)
	case o.Shipment == nil || o.Shipment.Tracking == "":
		return refuse("order %s has no parcel", o.Number)
	case o.TotalCents <= 0:
		return refuse("order %s has no price", o.Number)
	}
	return nil
}
