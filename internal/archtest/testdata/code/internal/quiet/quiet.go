// Package quiet is read by its authors.
package quiet

func Exported() {}
