package secrets

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// clients are those of somebody who shows a credential, and notes every answer.
type clients struct {
	*stack
	wigglev1connect.AuthServiceClient
	wigglev1connect.AccountServiceClient
	wigglev1connect.RoleServiceClient
	wigglev1connect.KeyServiceClient
	wigglev1connect.AuditServiceClient
	wigglev1connect.InstanceServiceClient
	wigglev1connect.WorkerServiceClient
	wigglev1connect.WorkflowServiceClient

	http *http.Client
}

// as makes clients that send a header; without one if it is empty.
func (s *stack) as(authorization string, more ...connect.ClientOption) *clients {
	s.Helper()
	cfg := rpc.ClientConfig{Connections: 1}
	options, err := rpc.NewClientOptions(cfg)
	if err != nil {
		s.Fatal(err)
	}
	options = append(options, more...)
	h := rpc.NewHTTPClient(cfg)
	h.Transport = recorder{s, h.Transport, authorization}
	s.Cleanup(h.CloseIdleConnections)
	return &clients{
		stack: s, http: h,
		AuthServiceClient:     wigglev1connect.NewAuthServiceClient(h, s.router, options...),
		AccountServiceClient:  wigglev1connect.NewAccountServiceClient(h, s.router, options...),
		RoleServiceClient:     wigglev1connect.NewRoleServiceClient(h, s.router, options...),
		KeyServiceClient:      wigglev1connect.NewKeyServiceClient(h, s.router, options...),
		AuditServiceClient:    wigglev1connect.NewAuditServiceClient(h, s.router, options...),
		InstanceServiceClient: wigglev1connect.NewInstanceServiceClient(h, s.router, options...),
		WorkerServiceClient:   wigglev1connect.NewWorkerServiceClient(h, s.router, options...),
		WorkflowServiceClient: wigglev1connect.NewWorkflowServiceClient(h, s.router, options...),
	}
}

// bearer makes clients of who has a key or a session.
func (s *stack) bearer(credential string) *clients { return s.as("Bearer " + credential) }

// handsOut lists the calls whose good answers are for a secret to be told: those answers are not noted.
func handsOut(path string) bool {
	return slices.Contains([]string{
		wigglev1connect.AuthServiceSignInProcedure, wigglev1connect.KeyServiceCreateKeyProcedure, wigglev1connect.KeyServiceRotateKeyProcedure,
	}, path)
}

// recorder sends a header, and notes headers and bodies of answers as they are read.
type recorder struct {
	stack         *stack
	next          http.RoundTripper
	authorization string
}

// RoundTrip implements [http.RoundTripper].
func (r recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	if r.authorization != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", r.authorization)
	}
	res, err := r.next.RoundTrip(req)
	if err != nil {
		r.stack.Add(Errors, req.URL.Path, err.Error())
		return res, err
	}
	if res.StatusCode == http.StatusOK && handsOut(req.URL.Path) {
		return res, nil
	}
	r.stack.Add(Answers, req.URL.Path, fmt.Sprint(res.Status, res.Header))
	res.Body = &recorded{ReadCloser: res.Body, answer: res, path: req.URL.Path, stack: r.stack}
	return res, nil
}

// recorded is a body that is noted when it is closed, with the trailers.
type recorded struct {
	io.ReadCloser

	answer *http.Response
	path   string
	stack  *stack
	text   bytes.Buffer
}

// Read implements [io.Reader].
func (r *recorded) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.text.Write(p[:n])
	return n, err
}

// Close implements [io.Closer].
func (r *recorded) Close() error {
	r.stack.Add(Answers, r.path, fmt.Sprint(r.text.String(), r.answer.Trailer))
	return r.ReadCloser.Close()
}

// done fails the test if a call failed.
func (s *stack) done(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// refused notes the error of a call, which has to fail so.
func (s *stack) refused(what string, err error, want faults.Code) {
	s.Helper()
	if code := faults.CodeOf(err); code != want {
		s.Errorf("%s: %s (%v), want %s", what, code, err, want)
	}
	s.Add(Errors, what, fmt.Sprintf("%v %+v %#v", err, err, err))
}

// post sends a body as it is, as programs without a client do, and returns the answer's status and cookies. Headers are names and
// values in turn.
func (s *stack) post(procedure, body string, headers ...string) (status int, cookies []*http.Cookie) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.router+procedure, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Add(pair[0], pair[1])
	}
	res, err := recorder{s, http.DefaultTransport, ""}.RoundTrip(req)
	if err != nil {
		s.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return res.StatusCode, res.Cookies()
}
