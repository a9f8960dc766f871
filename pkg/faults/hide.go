package faults

import (
	"regexp"
	"strings"
)

// credentials are Wiggle's, as services/auth writes them, also those that were cut or mistyped: a kind, a public id, a secret.
var credentials = regexp.MustCompile(`\b(wg[kis]_[0-9A-Za-z]+_)[0-9A-Za-z]{16,}`)

// Hide returns a text in which `[hidden]` stands for the secrets of API keys, sessions and set-up tokens; their public ids
// stay. People paste a key where its id, or a name, is asked for, and what they gave is repeated in errors, logs and the
// audit log. Faults hide by themselves what they are made of.
func Hide(text string) string {
	if !strings.Contains(text, "wg") {
		return text // nearly all
	}
	return credentials.ReplaceAllString(text, "${1}[hidden]")
}
