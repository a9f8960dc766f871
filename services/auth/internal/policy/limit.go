package policy

import (
	"net/netip"
	"time"
)

// Limit is how often something may be done: Burst times at once, and from then on once in Every. It is the generic cell rate
// algorithm (ITU-T I.371): all that is kept is the instant at which the whole burst is there again.
type Limit struct {
	Burst int
	Every time.Duration
}

// TryLimits are the limits of tries to sign in (AUT-7). A person who mistypes meets none of them. The first keeps an address
// from guessing at an account; nobody else is locked out by it. The second bounds guesses at an account from all addresses;
// addresses from which the account has signed in before are exempt, so that whoever exhausts it does not lock the account's
// owner out. The third is generous, as many people may share an address.
func TryLimits() (pair, account, address Limit) {
	return Limit{Burst: 10, Every: 30 * time.Second}, Limit{Burst: 100, Every: 10 * time.Second},
		Limit{Burst: 300, Every: time.Second}
}

// Take counts one more. full is when the whole burst was to be there again, or any time in the past. It returns the new
// such instant, or, where the limit does not allow another, how long to wait for it.
func (l Limit) Take(full, now time.Time) (next time.Time, wait time.Duration) {
	if full.Before(now) {
		full = now
	}
	next = full.Add(l.Every)
	if over := next.Sub(now) - time.Duration(l.Burst)*l.Every; over > 0 {
		return full, over
	}
	return next, 0
}

// originBits is the part of an IPv6 address that one customer of a provider has: limits that counted the rest would be none.
const originBits = 64

// Origin is an address as limits count it: an IPv4 address, or the network of an IPv6 address. What is no address is one
// origin of its own.
func Origin(address string) string {
	if host, err := netip.ParseAddrPort(address); err == nil {
		address = host.Addr().String()
	}
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return "unknown"
	}
	addr = addr.Unmap().WithZone("")
	if addr.Is4() {
		return addr.String()
	}
	network, err := addr.Prefix(originBits)
	if err != nil {
		return "unknown"
	}
	return network.String()
}
