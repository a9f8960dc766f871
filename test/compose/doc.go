// Package compose holds deploy/compose to what it says (OPS-3, OPS-4): its test builds the images, brings the whole stack
// up, and runs orders against it from outside while instances are scaled to four, one container of each service is stopped,
// and all are restarted one by one. No call may fail, every order must complete and be found by search; then traces,
// dashboards and images are looked at.
//
// It needs Docker and takes minutes, so it is behind the build tag compose: make compose-test.
package compose
