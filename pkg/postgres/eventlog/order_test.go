package eventlog

import "testing"

// Of two readings that share a reader the one that was made first is taken in last. What the other has found out in between
// is not true of the entries that the first has read: a number up to which all is decided now may have been open then (EVT-3).
func TestAnEarlierLookKnowsNoMoreThanItDid(t *testing.T) {
	t.Parallel()
	r := &Reader{}
	r.take(look{last: 17, id: 905, life: 1, oldest: 900}, r.known()) // 17 is decided when 905 is the oldest
	first := r.known()
	second := r.known()
	if got := r.take(look{last: 17, life: 1, oldest: 905}, second); got != 17 {
		t.Fatalf("the second knows up to %d, want 17", got)
	}
	if got := r.take(look{last: 17, life: 1, oldest: 900}, first); got != 0 {
		t.Errorf("the first, which was made when 900 ran, is taken to know up to %d", got)
	}
	if got := r.take(look{last: 17, life: 1, oldest: 900}, r.known()); got != 17 {
		t.Errorf("a third, made after the second, knows up to %d, want 17", got)
	}
	if got := r.take(look{last: 3, id: 7, life: 2, oldest: 7}, r.known()); got != 3 {
		t.Errorf("in another life of the server all is known up to %d, want 3", got)
	}
}
