package guard

import (
	"context"
	"net/http"
	"strings"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/services/router/internal/principals"
)

// maxTokenBytes is the longest token there is.
const maxTokenBytes = 512

// credentialOf is what a call shows: a header, else a cookie, else a client certificate. false if it shows nothing. What is
// shown and wrong is an error: the next best is not taken instead.
func credentialOf(ctx context.Context, header http.Header) (principals.Credential, bool, error) {
	if values := header["Authorization"]; len(values) > 0 {
		token, err := bearer(values)
		return principals.Credential{Kind: principals.Token, Text: token}, err == nil, err
	}
	shown := transportOf(ctx)
	if header["Cookie"] != nil {
		token, found, err := sessionCookie(shown, header)
		if found || err != nil {
			return principals.Credential{Kind: principals.Token, Text: token}, err == nil, err
		}
	}
	if shown.subject != "" {
		return principals.Credential{Kind: principals.Certificate, Text: shown.subject}, true, nil
	}
	return principals.Credential{}, false, nil
}

// bearer reads the token of an Authorization header.
func bearer(values []string) (string, error) {
	if len(values) != 1 {
		return "", faults.Unauthenticated("the call has %d Authorization headers; send one", len(values))
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", faults.Unauthenticated(
			`the Authorization header is none of the form "Bearer <API key>"; set WIGGLE_API_KEY, or send the header in that form`)
	}
	token = strings.Trim(token, " ")
	if !wellFormed(token) {
		return "", faults.Unauthenticated("what the Authorization header holds is no API key (wgk_…) and no session (wgs_…);" +
			" set WIGGLE_API_KEY to a whole key, as it was shown when it was made")
	}
	return token, nil
}

// wellFormed tells whether a text can be a token, so that nonsense asks nobody anything: wgk_ or wgs_, an id, a secret.
func wellFormed(token string) bool {
	if len(token) > maxTokenBytes || !strings.HasPrefix(token, "wgk_") && !strings.HasPrefix(token, "wgs_") {
		return false
	}
	id, secret, found := strings.Cut(token[len("wgk_"):], "_")
	if !found || id == "" || secret == "" {
		return false
	}
	for i := range len(token) {
		switch c := token[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// noCredential is what a call without any is told.
func noCredential() error {
	return faults.Unauthenticated("the call shows no credential: set WIGGLE_API_KEY to an API key, sign in (wiggle login)," +
		` or send the header "Authorization: Bearer <API key>"`)
}
