// Package steps is what the bench's workers run: the workflows, their payloads, and the worker process, which serves them by
// the Go SDK and tells the process that measures how many steps the server has taken and how many instances have ended.
//
// A step does next to nothing: it changes a digit of its context.
package steps
