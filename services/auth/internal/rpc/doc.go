// Package rpc is the services of an auth process: AuthService, AccountService, RoleService, KeyService and AuditService, which
// routers forward, and PrincipalService, which routers call.
//
// Routers check permissions before they forward a call (AUT-4), by what they have cached of the caller. This package checks
// again, and where something is changed by what the database says of the caller in the very transaction: so a key that was
// revoked, or an account that was demoted, does not use the second that caches have (AUT-5) to give itself another way in.
package rpc
