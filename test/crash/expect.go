package crash

import "fmt"

// expect computes the final context of an instance from its input: the flow once
// more, as a plain program.
func expect(o order) order {
	items := make([]item, len(o.Items))
	copy(items, o.Items)
	o.Items = items
	o.Sum = mix(o.Sum, "begin")
	for {
		o.Until = o.Wakes[o.Round]
		o.Round++
		o.Sum = mix(o.Sum, "round")
		if !admits(o) {
			o.Sum = mix(o.Sum, "amend")
		}
		slow := mix(mix(o.Sum, "slow-first"), "slow-second")
		flaky := mix(o.Sum, "flaky")
		gated := absent
		if opensGate(o) {
			gated = mix(o.Sum, "behind-gate")
		}
		o.Sum = mix(o.Sum, "gather", slow, flaky, gated)

		sums := []string{"total"}
		for i, it := range o.Items {
			sum := expectElement(o, i, it)
			sums = append(sums, sum)
			if sum != absent {
				items[i].Sum = sum
			}
		}
		o.Sum = mix(o.Sum, sums...)
		if !goesOn(o) {
			return o
		}
	}
}

func expectElement(base order, index int, it item) string {
	if !keeps(base, it) {
		return absent
	}
	sum := mix(it.Sum, "price", base.Sum, fmt.Sprint(index))
	left := mix(sum, "left", sum, "left")
	right := mix(sum, "right", sum, "right")
	return mix(sum, "pair", left, right)
}
