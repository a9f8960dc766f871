// Package document makes search documents of instances (SRC-2). It is pure: no database, no clock.
//
// A document holds what an instance is (id, workflow, state, times) and what its context says, in three forms:
//
//   - the text: every string and number of the context in the order in which they stand, and the failure's type, message
//     and node; searched by words;
//   - lexemes: one for the workflow, the state, the key, and each short string, number and truth value of the context at its
//     JSON Pointer; for conditions of equality. A lexeme is '=', a letter for its kind, and a hash of 64 bits, so it is
//     short, needs no quoting, and is never what a text is parsed to;
//   - the numbers of the context at their JSON Pointers; for ranges.
//
// Names of fields are not text. A context that is not JSON is left out, and of one that is broken or too large counts what
// comes before the break or the bound. Whatever a context holds, the database takes the document: there is no NUL in it,
// nothing that is not UTF-8, and no more than the limits below.
package document
