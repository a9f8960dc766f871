// Package principals tells whose a credential is, by asking the auth service and remembering the answers (AUT-5, AUT-6).
//
//	            answer                  3/4 of the TTL          TTL
//	(unknown) ---------> fresh ---------------> fresh, renewed ------> stale
//	    |                  ^                     in background          |
//	    | no               |            answer                          | auth answers: asked first
//	    v                  +--------------------------------------------+ auth does not: goes on until the grace ends
//	 refused (1 s)
//
// What it guarantees:
//
//   - A change that the auth service tells of (a key revoked, a role changed) is followed within a second: it is asked for
//     every half second, and NATS, where there is one, brings it sooner. An answer that was read before a change is not kept
//     after it, however late it comes.
//   - A credential is never accepted after its own end, nor after the auth service has said no.
//   - While no auth process answers, what was known goes on for the grace and no longer, and at no cost to its calls.
//   - Concurrent calls with one unknown credential make one call to the auth service. What is kept, what is under way and what
//     is refused is bounded; strangers cannot displace what is known by trying credentials.
//   - A credential itself is not kept, only its hash.
package principals
