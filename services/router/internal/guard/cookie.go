package guard

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/faults"
)

const (
	// sessionName is the cookie of browsers' sessions.
	sessionName = "wiggle_session"
	// csrfHeader is a header that a page of another origin cannot send without being asked.
	csrfHeader = "Wiggle-Csrf"
	// connectHeader is what Connect's clients send, and no form can.
	connectHeader = "Connect-Protocol-Version"
)

// sessionCookie is the session of a browser. A browser sends its cookies whoever made it call, so the call must show that
// a page of this very router did (AUT-9).
func sessionCookie(shown transport, header http.Header) (token string, found bool, err error) {
	for _, cookie := range (&http.Request{Header: header}).CookiesNamed(sessionName) {
		if found {
			return "", true, faults.Unauthenticated("the call has more than one cookie %s; delete this site's cookies and sign in again",
				sessionName)
		}
		token, found = cookie.Value, true
	}
	if !found {
		return "", false, nil
	}
	if err := sameOrigin(shown, header); err != nil {
		return "", true, err
	}
	if !wellFormed(token) {
		return "", true, faults.Unauthenticated("the cookie %s holds no session; sign in again", sessionName)
	}
	return token, true, nil
}

// sameOrigin refuses calls of a browser that a page of another origin may have caused.
func sameOrigin(shown transport, header http.Header) error {
	if site := header.Get("Sec-Fetch-Site"); site != "" {
		if site != "same-origin" {
			return faults.Unauthenticated("a session's cookie counts only for pages of this router, and the browser calls this one %s;"+
				" send an API key in the Authorization header", quoted(site))
		}
	} else if !isOrigin(header.Get("Origin"), shown.host) {
		return faults.Unauthenticated("a session's cookie counts only for pages of this router: the call has no header Sec-Fetch-Site," +
			" and its Origin is not the host that it calls; programs send a token in the Authorization header")
	}
	if header.Get(csrfHeader) != "1" && header.Get(connectHeader) != "1" {
		return faults.Unauthenticated("a call with a session's cookie needs the header %s: 1 or %s: 1", csrfHeader, connectHeader)
	}
	return nil
}

// isOrigin tells whether an Origin is of the host.
func isOrigin(text, host string) bool {
	origin, err := url.Parse(text)
	return err == nil && origin.Host != "" && strings.EqualFold(origin.Host, host)
}

// quoted keeps a browser's own word short.
func quoted(s string) string { return s[:min(len(s), 32)] }

// CheckBrowser refuses to begin a session with a cookie for a page of another origin, which would sign the browser in as
// somebody else.
func CheckBrowser(ctx context.Context) error {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return faults.FailedPrecondition("a cookie needs a call over HTTP")
	}
	return sameOrigin(transportOf(ctx), info.RequestHeader())
}

// SetSession gives the browser its session as a cookie. It lasts until the session ends at the latest.
func SetSession(ctx context.Context, token string, ends time.Time) {
	setCookie(ctx, token, ends)
}

// ClearSession has the browser forget its session.
func ClearSession(ctx context.Context) { setCookie(ctx, "", time.Unix(1, 0)) }

func setCookie(ctx context.Context, token string, ends time.Time) {
	info, ok := connect.CallInfoForHandlerContext(ctx)
	if !ok {
		return
	}
	t := transportOf(ctx)
	cookie := &http.Cookie{ //nolint:gosec // a browser on the machine itself, over plain http, would not take it as secure
		Name: sessionName, Value: token, Path: "/", Expires: ends, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: t.secure || !t.local,
	}
	info.ResponseHeader().Add("Set-Cookie", cookie.String())
}
