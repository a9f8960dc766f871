package wiggle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
)

const (
	// The variables by which a process is given its key.
	envAPIKey     = "WIGGLE_API_KEY"
	envAPIKeyFile = "WIGGLE_API_KEY_FILE"
	// maxKeyBytes bounds a key: it travels in a header.
	maxKeyBytes = 4 << 10
	// keyFileEvery is how long a key that was read from a file is used before the
	// file is looked at again.
	keyFileEvery = 5 * time.Second
)

// WithAPIKey shows the server this API key, or token of a session, with every call
// and stream. Without it, and without [WithAPIKeyFile], it is what WIGGLE_API_KEY
// holds, or the file that WIGGLE_API_KEY_FILE names; an empty key means that none is
// shown, whatever the environment says. The last such option counts.
//
// The key is sent as `Authorization: Bearer` unless an interceptor of
// [WithConnectOptions] has set that header. It appears in no log and no error. Over
// plain http others on the way may read it. Clusters inside a private network are
// reached so, and it is not refused: [Dial] logs a warning, once, for a host that is
// not this one.
func WithAPIKey(key string) ClientOption {
	return func(cfg *clientConfig) { cfg.key = fixedKey(key) }
}

// WithAPIKeyFile is [WithAPIKey] with the key in a file, blanks and line ends around it
// left out. The file is read again every few seconds, so that a key is replaced
// without a restart: write the new one, wait, and revoke the old one. [Dial] fails if
// the file cannot be read; later the key from before stays in use, and a warning is
// logged.
func WithAPIKeyFile(path string) ClientOption {
	return func(cfg *clientConfig) { cfg.key = keyInFile(path) }
}

// keyOf makes the function that tells the key of the moment. It makes nil where none
// is shown. The key is kept in functions, and not in fields, so that nothing that
// prints a client can print it.
type keyOf func(*slog.Logger) (func() string, error)

func fixedKey(key string) keyOf {
	return func(*slog.Logger) (func() string, error) {
		if key == "" {
			return nil, nil
		}
		if err := checkKey(key); err != nil {
			return nil, err
		}
		return func() string { return key }, nil
	}
}

func keyInFile(path string) keyOf {
	return func(logger *slog.Logger) (func() string, error) {
		key, err := readKey(path)
		if err != nil {
			return nil, err
		}
		f := &keyFile{path: path, logger: logger, key: key, readAt: time.Now()}
		return f.current, nil
	}
}

// keyInEnvironment is what holds where no option says otherwise.
func keyInEnvironment(logger *slog.Logger) (func() string, error) {
	key, path := os.Getenv(envAPIKey), os.Getenv(envAPIKeyFile)
	var source func() string
	var err error
	switch {
	case key != "" && path != "":
		return nil, errors.New(envAPIKey + " and " + envAPIKeyFile + " are both set: set one of them")
	case path != "":
		if source, err = keyInFile(path)(logger); err != nil {
			return nil, fmt.Errorf("%s: %w", envAPIKeyFile, err)
		}
	default:
		if source, err = fixedKey(key)(logger); err != nil {
			return nil, fmt.Errorf("%s: %w", envAPIKey, err)
		}
	}
	return source, nil
}

// checkKey refuses what cannot be sent in a header, without repeating it.
func checkKey(key string) error {
	if len(key) > maxKeyBytes {
		return fmt.Errorf("the API key has more than %d bytes, which no key has", maxKeyBytes)
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("the API key has blanks or characters that no key has")
	}
	return nil
}

func readKey(path string) (string, error) {
	f, err := os.Open(path) //nolint:gosec // whoever starts the program names the file
	if err != nil {
		return "", fmt.Errorf("read the API key: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxKeyBytes+1))
	if err != nil {
		return "", fmt.Errorf("read the API key: %w", err)
	}
	key := string(bytes.TrimSpace(data))
	if key == "" {
		return "", fmt.Errorf("%s holds no API key", path)
	}
	if err := checkKey(key); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// keyFile is a key in a file that may be replaced.
type keyFile struct {
	path   string
	logger *slog.Logger

	mu     sync.Mutex
	key    string
	readAt time.Time
	failed bool // when the file was last read
}

func (f *keyFile) current() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if now.Sub(f.readAt) < keyFileEvery {
		return f.key
	}
	f.readAt = now
	key, err := readKey(f.path)
	if err != nil {
		if !f.failed {
			f.logger.LogAttrs(context.Background(), slog.LevelWarn,
				"wiggle: the file with the API key cannot be read; the key from before stays in use",
				slog.String("file", f.path), slog.Any("error", err))
		}
		f.failed = true
		return f.key
	}
	f.key, f.failed = key, false
	return key
}

// bearer is the interceptor that shows the key. It comes last, so that interceptors
// of the user's do not see it.
type bearer struct{ key func() string }

func (b bearer) show(header http.Header) {
	if header.Get("Authorization") == "" {
		header.Set("Authorization", "Bearer "+b.key())
	}
}

// WrapUnary implements [connect.Interceptor].
func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		b.show(req.Header())
		return next(ctx, req)
	}
}

// WrapStreamingClient implements [connect.Interceptor].
func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		b.show(conn.RequestHeader())
		return conn
	}
}

// WrapStreamingHandler implements [connect.Interceptor].
func (bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// warnPlain tells of a key that goes over the network in the clear.
func warnPlain(logger *slog.Logger, u *url.URL) {
	if u.Scheme == "https" || isLoopback(u.Hostname()) {
		return
	}
	logger.LogAttrs(context.Background(), slog.LevelWarn,
		"wiggle: the API key goes over plain http, where others on the way may read it: dial https, unless the network is yours alone",
		slog.String("host", u.Host))
}

func isLoopback(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// noRedirect keeps the key, and what else a call holds, from a host that was not
// dialled.
func noRedirect(req *http.Request, via []*http.Request) error {
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf(
		"%s redirects to %s://%s, which calls do not follow: dial that", via[0].URL.Host, req.URL.Scheme, req.URL.Host))
}
