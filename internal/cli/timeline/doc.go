// Package timeline draws what happened to an instance for a terminal: a line for each attempt of each step, indented by
// branch, with how long it waited and ran, and a bar that shows when.
//
// It draws from the history alone. History does not say which fan-out a branch belongs to; that is found by time and number,
// which is exact unless two fan-outs of the same instant are open at once, and then only the grouping is a guess.
package timeline
