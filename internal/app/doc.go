// Package app puts processes together where that takes more than one service: [ServeAll], in which the services talk over
// an in-memory network through the same handlers and clients (ARC-4), and [Migrate], which looks after schemas of all
// roles. A process of one service is that service's own Main; what stands around either is package process.
//
// It owns nothing else: what a service does is in the service. Package dev, below, is `wiggle dev`.
package app
