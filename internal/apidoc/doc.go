// Package apidoc writes the reference of the API from the protos: their comments, the constraints of their fields in
// words, and what each call needs. [Pages] is a function from a descriptor set with source information to the text of the
// pages; cmd/apidoc reads the one and writes the other (`make generate`).
//
// Nothing is left out quietly. An element without a comment, a constraint that has no words here, or two headings of a page
// with the same anchor are errors, which name the element.
package apidoc
