// Package util lets everything in.
package util
