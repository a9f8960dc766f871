// Package definition says what a workflow definition means. It is shared by the
// server, which checks what is registered and runs it, and by SDKs, which check
// what they build before they send it.
//
//   - [Validate] finds everything that is wrong with a definition at once.
//   - [Analyze] resolves one into a [Graph] of plain structs.
//   - [Fingerprint] tells whether two definitions are the same graph, [Diff]
//     what is different.
//   - [FromJSON] and [ToJSON] read and write the JSON form.
//
// The functions take a definition from anywhere: none panics or runs longer than
// about linearly in its size, whatever it holds, and each gives the same answer
// for the same definition whatever the order of its maps. None changes its
// argument or keeps a reference to it. The package needs the protobuf runtime and
// the standard library alone.
package definition
