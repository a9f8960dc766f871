package backends

import "testing"

// TestEnter: what a process has in hand of a router is bounded, and what only makes more work is refused first (WRK-15).
func TestEnter(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, test := range []struct {
		name   string
		bytes  int
		yields bool
		most   int
	}{
		{"calls", 0, false, maxCalls},
		{"calls that yield", 0, true, maxCalls / 2},
		{"bytes", mib, false, maxCallBytes / mib},
		{"bytes of what yields", mib, true, maxCallBytes / 2 / mib},
		{"one that is too large", 2 * maxCallBytes, true, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var p Process
			var leave []func()
			for {
				l, ok := p.Enter(test.bytes, test.yields)
				if !ok {
					break
				}
				leave = append(leave, l)
			}
			if len(leave) != test.most {
				t.Errorf("%d got in, want %d", len(leave), test.most)
			}
			if l, ok := p.Enter(0, false); ok != (test.most < maxCalls && test.bytes <= maxCallBytes) {
				t.Errorf("a report gets in: %v", ok)
			} else if ok {
				l()
			}
			for _, l := range leave {
				l()
			}
			if l, ok := p.Enter(test.bytes, test.yields); !ok {
				t.Error("no room when all have left")
			} else if l(); p.bytes.Load() != 0 {
				t.Errorf("%d bytes are held", p.bytes.Load())
			}
		})
	}
}
