// Package reads says where each call of the services may be answered, and has it answered there (REP-4).
//
// [FreshnessOf] is the one table. A call that changes something, or that decides a change, is the primary's; what only
// tells, and may be some seconds old, goes to a replica if one will do (package replica). Two rules hold whatever the table
// says:
//
//   - that something does not exist is said by the primary alone (REP-7);
//   - a page that goes on where another ended is read where nothing can be missing that the other may have seen.
//
// A test holds the table against the services, and another one the services against the table: no handler reads the store
// but through here.
package reads
