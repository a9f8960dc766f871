// Package bus is the way of events through NATS JetStream (EVT-4): the stream that holds them, the leader's side that
// appends to it, and the side of those who follow it.
//
// What it guarantees: events that one [Bus] publishes lie in the stream in the order in which they were given, whatever
// is lost on the way and however often a part is given again. For each message says behind which number of the stream
// it belongs, so that what follows a lost message is refused and not stored out of order; this also keeps two
// publishers that both believe to be the only one from mixing their events. Delivery to followers is at-least-once.
//
// NATS may be down when a Bus is opened, and go away at any time: calls fail then, and the connection comes back by
// itself.
package bus
