package policy

import "strings"

const (
	// MaxName bounds the names of accounts and keys, MaxRoleName those of roles.
	MaxName     = 128
	MaxRoleName = 64
	// MinPassword and MaxPassword bound new passwords, in bytes. Length is what counts (NIST SP 800-63B); there are no rules
	// about kinds of characters.
	MinPassword = 12
	MaxPassword = 1024
)

const (
	letters   = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits    = "0123456789"
	nameMarks = "._@+-"
)

// ValidName tells whether a text is a name of an account or key: letters, digits and . _ @ + -, beginning with a letter or
// digit.
func ValidName(name string) bool {
	return name != "" && len(name) <= MaxName && strings.Trim(name, letters+digits+nameMarks) == "" &&
		!strings.Contains(nameMarks, name[:1])
}

// ValidRoleName tells whether a text is a name of a role: lower-case letters, digits and -, not beginning with -.
func ValidRoleName(name string) bool {
	return name != "" && len(name) <= MaxRoleName && name[0] != '-' &&
		strings.Trim(name, strings.ToLower(letters)+digits+"-") == ""
}

// NameKey is by what accounts are found: names that differ in case only are the same.
func NameKey(name string) string { return strings.ToLower(name) }

// ValidPassword tells whether a text may become a password.
func ValidPassword(password string) bool {
	return len(password) >= MinPassword && len(password) <= MaxPassword
}
