// Package helpers is named otherwise than its folder.
package helpers
