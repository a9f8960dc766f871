// Package password hashes passwords and checks them (AUT-2).
//
// New hashes are argon2id (RFC 9106) in the PHC string format, with their parameters beside them:
//
//	$argon2id$v=19$m=19456,t=2,p=1$salt$hash
//
// Hashes of an imported users file may have other parameters, or be PBKDF2:
//
//	$pbkdf2-sha256$i=600000,l=32$salt$hash        also $pbkdf2-sha512$...; l may be left out
//
// Salt and hash are base64 without padding. What is imported is held to bounds, so that a hostile hash can burn neither the
// machine's memory nor its time, and is replaced at the next sign-in ([Hasher.Outdated]).
//
// A [Hasher] computes a bounded number of hashes at a time; others wait, and of these there is a bounded number too. So a flood
// of sign-ins takes a known amount of memory and no more than its share of the processors.
package password
