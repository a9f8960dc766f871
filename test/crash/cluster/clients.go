package cluster

import (
	"net/http"

	"github.com/wiggle-run/wiggle/pkg/rpc"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// Clients are the generated clients of a router.
type Clients struct {
	Workflows wigglev1connect.WorkflowServiceClient
	Instances wigglev1connect.InstanceServiceClient
	Workers   wigglev1connect.WorkerServiceClient
	Events    wigglev1connect.EventServiceClient
	Schedules wigglev1connect.ScheduleServiceClient
	Search    wigglev1connect.SearchServiceClient
	Auth      wigglev1connect.AuthServiceClient
	Accounts  wigglev1connect.AccountServiceClient
	Roles     wigglev1connect.RoleServiceClient
	Keys      wigglev1connect.KeyServiceClient
}

// Dial makes clients that show no credential; nothing is called yet.
func Dial(url string) (Clients, error) { return DialAs(url, "") }

// DialAs makes clients that show an API key, or the token of a session, with every call.
func DialAs(url, credential string) (Clients, error) {
	cfg := rpc.ClientConfig{Connections: 2}
	opts, err := rpc.NewClientOptions(cfg)
	if err != nil {
		return Clients{}, err
	}
	c := rpc.NewHTTPClient(cfg)
	if credential != "" {
		c.Transport = bearer{next: c.Transport, credential: credential}
	}
	return Clients{
		Workflows: wigglev1connect.NewWorkflowServiceClient(c, url, opts...),
		Instances: wigglev1connect.NewInstanceServiceClient(c, url, opts...),
		Workers:   wigglev1connect.NewWorkerServiceClient(c, url, opts...),
		Events:    wigglev1connect.NewEventServiceClient(c, url, opts...),
		Schedules: wigglev1connect.NewScheduleServiceClient(c, url, opts...),
		Search:    wigglev1connect.NewSearchServiceClient(c, url, opts...),
		Auth:      wigglev1connect.NewAuthServiceClient(c, url, opts...),
		Accounts:  wigglev1connect.NewAccountServiceClient(c, url, opts...),
		Roles:     wigglev1connect.NewRoleServiceClient(c, url, opts...),
		Keys:      wigglev1connect.NewKeyServiceClient(c, url, opts...),
	}, nil
}

// bearer shows a credential with every request.
type bearer struct {
	next       http.RoundTripper
	credential string
}

// RoundTrip implements [http.RoundTripper].
func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.credential)
	return b.next.RoundTrip(req)
}
