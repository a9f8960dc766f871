// Package topology reads the description of a cluster's databases: which shards there are, what each holds, how to
// connect to its primary and replicas, and by which weights new instances are spread over them.
//
// The description is a JSON document (SHD-10) or, without one, the URL of a single database, which is then a cluster of one
// shard with every role (SHD-14). Load chooses between the two by the environment; Parse and FromSingle read one of them.
// All end in the same resolved, immutable Topology, in which every setting has its value and shards are in the order of
// their ids, so that nothing downstream knows where it came from.
//
// Checks come in two steps (SHD-13). Parse makes every check that the document alone allows; Check makes those that need to
// know the registry of the home shard and what the databases say about themselves. Both are pure and report every
// problem they find, each with the shard or generation it belongs to, as *Problems.
//
// A password goes out in one way only, Member.ConnString. It is in no error (nor is any other part of a URL that could not
// be read), and in no Topology, Document or part of one that is printed by fmt or slog. To make sure of it, messages
// repeat the text of a value only where that is the name of a field, role, state, or setting, and then as it stands
// in the document, before ${NAME} is replaced (SHD-12).
package topology
