package topology

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// databaseURL is a PostgreSQL URL taken apart. net/url does not read those with several hosts, and quotes the URL, with
// its password, in its errors.
type databaseURL struct {
	user, password string
	hosts          []string // each host or host:port, as written
	path           string   // "" or /database, as written
	params         []param  // without user and password
}

type param struct{ key, raw string }

const (
	sessionAttrs = "target_session_attrs"
	readWrite    = "read-write"
	escapeAdvice = "write / ? # and @ in a user or password as %2F %3F %23 and %40"
)

// parseURL reads a URL. What is wrong with it, if anything, is said without repeating any of it, as a part that is not
// understood may be part of a password.
func parseURL(text string) (u databaseURL, fault string) {
	rest, _ := cutPrefixFold(strings.TrimSpace(text), "jdbc:")
	if rest == "" {
		return u, "url is empty"
	}
	rest, ok := cutScheme(rest)
	if !ok {
		return u, "url does not start with postgres:// or postgresql://"
	}
	if strings.ContainsFunc(rest, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return u, "url has a space or a control character"
	}
	if strings.Contains(rest, "#") {
		return u, "url has a #; " + escapeAdvice
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	if strings.Contains(tail, "@") {
		return u, "url has an @ after its host; " + escapeAdvice
	}
	if fault = u.readAuthority(authority); fault != "" {
		return u, fault
	}
	path, query, _ := strings.Cut(tail, "?")
	if name, err := url.PathUnescape(path); err != nil || strings.Count(name, "/") > 1 {
		return u, "url has a malformed database name"
	}
	u.path = path
	return u, u.readQuery(query)
}

func cutPrefixFold(s, prefix string) (string, bool) {
	if len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix) {
		return s[len(prefix):], true
	}
	return s, false
}

func cutScheme(s string) (string, bool) {
	if rest, ok := cutPrefixFold(s, "postgres://"); ok {
		return rest, true
	}
	return cutPrefixFold(s, "postgresql://")
}

func (u *databaseURL) readAuthority(authority string) (fault string) {
	hosts := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		hosts = authority[at+1:]
		user, password, _ := strings.Cut(authority[:at], ":")
		var userErr, passwordErr error
		u.user, userErr = url.PathUnescape(user)
		u.password, passwordErr = url.PathUnescape(password)
		if userErr != nil || passwordErr != nil {
			return "url has a malformed % escape in its user or password; write % as %25"
		}
	}
	if hosts == "" { // the driver's choice: a socket, or a host parameter
		return ""
	}
	u.hosts = strings.Split(hosts, ",")
	for _, h := range u.hosts {
		if fault = checkHost(h); fault != "" {
			return fault
		}
	}
	return ""
}

func checkHost(hostPort string) (fault string) {
	host, port, hasPort := strings.Cut(hostPort, ":")
	if strings.HasPrefix(hostPort, "[") {
		inside, after, closed := strings.Cut(hostPort[1:], "]")
		if !closed || after != "" && after[0] != ':' || !consistsOf(inside, ":%") {
			return "url has a malformed IPv6 address"
		}
		host, port, hasPort = inside, strings.TrimPrefix(after, ":"), after != ""
	} else if !consistsOf(host, "%~") {
		return "url has a host with a character that hosts do not have"
	}
	if host == "" {
		return "url has an empty host"
	}
	if n, err := strconv.ParseUint(port, 10, 16); hasPort && (err != nil || n == 0) {
		return "url has a port that is not a number from 1 to 65535"
	}
	return ""
}

// consistsOf reports whether s has only letters and digits of ASCII, - . _ and the characters in more.
func consistsOf(s, more string) bool {
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.', r == '_':
		case strings.ContainsRune(more, r):
		default:
			return false
		}
	}
	return true
}

func (u *databaseURL) readQuery(query string) (fault string) {
	for raw := range strings.SplitSeq(query, "&") {
		if raw == "" {
			continue
		}
		rawKey, rawValue, _ := strings.Cut(raw, "=")
		key, keyErr := url.PathUnescape(rawKey) // a + is a + here, as it is to libpq and pgx
		value, valueErr := url.PathUnescape(rawValue)
		if keyErr != nil || valueErr != nil {
			return "url has a malformed % escape in its parameters"
		}
		switch key {
		case "user":
			u.user = value
		case "password":
			u.password = value
		case sessionAttrs:
			if !slices.Contains([]string{"any", readWrite, "read-only", "primary", "standby", "prefer-standby"}, value) {
				return "url has a " + sessionAttrs + " that is none of any, read-write, read-only, primary, standby, prefer-standby"
			}
			u.params = append(u.params, param{key, raw})
		default:
			u.params = append(u.params, param{key, raw})
		}
	}
	return ""
}

// expectWriter makes the URL of a primary with several hosts find the one that takes writes, unless it says what to find.
// Without it the driver takes the first that answers, which after a failover may be a standby.
func (u *databaseURL) expectWriter() {
	if len(u.hosts) > 1 && !slices.ContainsFunc(u.params, func(p param) bool { return p.key == sessionAttrs }) {
		u.params = append(u.params, param{sessionAttrs, sessionAttrs + "=" + readWrite})
	}
}

// connString is the URL with credentials.
func (u *databaseURL) connString() Secret {
	user, params := "", u.params
	switch {
	case u.user != "" && u.password != "":
		user = url.UserPassword(u.user, u.password).String() + "@"
	case u.user != "":
		user = url.User(u.user).String() + "@"
	case u.password != "":
		// An empty user in front of the host would be taken for the user.
		escaped := strings.ReplaceAll(url.QueryEscape(u.password), "+", "%20")
		params = append(slices.Clip(params), param{"password", "password=" + escaped})
	}
	return NewSecret(u.format(user, params))
}

// display is the URL for people. Parameters can hold secrets (sslpassword) and are shown by a list of those that do not.
func (u *databaseURL) display() string {
	var shown []param
	for _, p := range u.params {
		if p.key == sessionAttrs || p.key == "sslmode" {
			shown = append(shown, p)
		}
	}
	return u.format("", shown)
}

func (u *databaseURL) format(user string, params []param) string {
	s := "postgres://" + user + strings.Join(u.hosts, ",") + u.path
	for i, p := range params {
		s += map[bool]string{true: "?", false: "&"}[i == 0] + p.raw
	}
	return s
}

// database identifies what the URL leads to: equal for two URLs that differ in credentials, order of hosts, or a default
// port alone.
func (u *databaseURL) database() string {
	hosts := make([]string, len(u.hosts))
	for i, h := range u.hosts {
		hosts[i] = strings.ToLower(h)
		if bare := h[strings.LastIndexByte(h, ']')+1:]; !strings.Contains(bare, ":") {
			hosts[i] += ":5432"
		}
	}
	slices.Sort(hosts)
	var params []string
	for _, p := range u.params {
		if p.key != sessionAttrs && p.key != "sslmode" {
			params = append(params, p.raw)
		}
	}
	slices.Sort(params)
	return strings.Join(hosts, ",") + u.path + "?" + strings.Join(params, "&")
}
