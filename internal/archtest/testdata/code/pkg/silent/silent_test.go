// Package silent is described by a test only, which go doc does not show.
package silent
