// Package scopes finds out what ids are about, for callers whose permission is limited (AUT-3, AUT-4). Nobody else costs
// anything here.
//
// It asks the instances processes, each shard once for all ids of a call, and they read the primary: what has just been
// started or leased is known at once. The namespace and workflow of an instance never change, so they are kept, those of
// the instances that were asked for last; that there is no such instance is not kept, as there may be one in a moment. Where
// a task is changes with each step, so nothing of tasks is kept.
//
// What a task is about the proto of ScopeService says. [subject.Task] names one with its lease.
package scopes
