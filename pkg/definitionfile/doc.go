// Package definitionfile reads workflow definitions from files that people write,
// in YAML or JSON (WF-22).
//
// YAML is read as another spelling of the JSON form: mappings, lists and scalars,
// in one document. What YAML has beyond that is refused, because a definition does
// not need it and because it is what makes YAML dangerous or surprising: anchors,
// aliases, merge keys, tags, directives, complex keys and several documents. So a
// file cannot unfold into more than it holds. Size and nesting are bounded before
// the parser sees the text.
//
// Reading does not validate; that is definition.Validate's. Every fault is told
// with its line and column in the file.
package definitionfile
