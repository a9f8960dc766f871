// Package auth is the service of accounts, roles, sessions, API keys and the audit log (AUT-1 to AUT-8). It owns the auth
// shard, which nobody else opens. Any number of its processes may run: they share everything by the database. Routers forward
// to it what people and programs ask, and ask it themselves whose a credential is.
//
// # The auth shard in a process
//
//	opening --migrated, claimed, first administrator seen to--> ready <--database away, back--> not ready
//	   |  ^
//	   |  +-- database away, or the cluster is so new that home has no id
//	   v
//	refused (another shard's database, edited migration)
//
// # A session
//
//	           sign-in                used (written once a minute): its idle time begins anew
//	(none) ----------------> living --------+
//	                          |  ^          |
//	                          |  +----------+
//	                          |
//	                          +-- signed out, revoked, password changed or reset, account disabled or deleted,
//	                          |   a hundred newer ones of the account --> gone, caches are told
//	                          +-- not used for WIGGLE_AUTH_SESSION_IDLE, or older than WIGGLE_AUTH_SESSION_LIFETIME
//	                              --> over, removed by and by; caches know when
//
// # A key
//
//	           made                          rotated: a new secret, the old one valid for the overlap
//	(none) -----------> living, one secret <------------------------------> living, two secrets
//	                      |        ^                                            |
//	                      |        +---- the overlap is over, or rotated again -+
//	                      +-- revoked, or its account deleted --> gone, caches are told
//	                      +-- its account disabled --> not valid until it is enabled again
//	                      +-- its time is over --> not valid; caches know when
//
// # Inside
//
//	internal/credential  API keys, session tokens and set-up tokens: minted, parsed, hashed
//	internal/password    hashes of passwords, computed a bounded number at a time
//	internal/policy      who may give what, names, expiry, limits (pure)
//	internal/authstore   accounts to audit log in PostgreSQL
//	internal/announce    changes told by NATS
//	internal/rpc         the services
package auth
