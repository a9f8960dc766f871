// Package api is read by people who did not write it.
package api

type Client struct{}

func (c *Client) Start() {}

func New() *Client { return nil }

const Limit = 1

type (
	Option func()
	// Result is documented.
	Result[T any] struct{}
)

func (Result[T]) Get() {}

type hidden struct{}

func (hidden) Exported() {}

// Kinds of things.
const (
	KindA = iota
	KindB
)

var Default = 1 // Default is documented on its line.
