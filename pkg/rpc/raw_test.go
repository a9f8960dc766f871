package rpc_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

type (
	rawRequest  = rpc.Raw[wigglev1.WorkRequest]
	rawResponse = rpc.Raw[wigglev1.WorkResponse]
)

// echo answers each message with its first result and its credits, and the end with a fault.
func echo(_ context.Context, stream *connect.BidiStream[rawRequest, rawResponse]) error {
	for {
		req, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return faults.LeaseLost("the end")
		}
		if err != nil {
			return err
		}
		m := &wigglev1.WorkRequest{}
		if err := proto.Unmarshal(req.Bytes, m); err != nil {
			return faults.Internal(err)
		}
		res := &wigglev1.WorkResponse{Revoked: m.GetCredits()}
		for _, r := range m.GetReports() {
			res.Tasks = append(res.Tasks, &wigglev1.Task{Context: r.GetResult()})
		}
		b, err := proto.Marshal(res)
		if err != nil {
			return faults.Internal(err)
		}
		if err := stream.Send(&rawResponse{Bytes: b}); err != nil {
			return err
		}
	}
}

// A handler of bytes serves generated clients of every protocol and encoding, and clients of bytes; errors keep their
// faults.
func TestRaw(t *testing.T) {
	t.Parallel()
	network := rpc.NewMemoryNetwork()
	server, err := rpc.NewServer(rpc.ServerConfig{})
	must(t, err)
	procedure := wigglev1connect.WorkerServiceWorkProcedure
	server.Handle(procedure, connect.NewBidiStreamHandler(procedure, echo, server.RawOptions()...))
	listener, err := network.Listen(serverName)
	must(t, err)
	go server.Serve(listener)
	t.Cleanup(func() { must(t, server.Close()) })
	client := rpc.NewHTTPClient(rpc.ClientConfig{DialContext: network.DialContext})
	t.Cleanup(client.CloseIdleConnections)
	plain, err := rpc.NewClientOptions(rpc.ClientConfig{})
	must(t, err)

	for name, options := range map[string][]connect.ClientOption{
		"connect": nil, "grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()},
		"json": {connect.WithCodec(rpc.NewClientJSONCodec(rpc.NewPayloads()))},
	} {
		workers := wigglev1connect.NewWorkerServiceClient(client, network.URL(serverName), append(slices.Clone(plain), options...)...)
		stream, err := workers.Work(t.Context())
		must(t, err)
		text := `{"n":12345678901234567890}`
		must(t, stream.Send(&wigglev1.WorkRequest{Credits: 3, Reports: []*wigglev1.StepReport{
			{Outcome: &wigglev1.StepReport_Result{Result: &wigglev1.Payload{ContentType: "application/json", Data: []byte(text)}}},
		}}))
		res, err := stream.Receive()
		must(t, err)
		if got := res.GetTasks()[0].GetContext(); res.GetRevoked() != 3 || string(got.GetData())+string(jsonOf(got)) != text {
			t.Errorf("%s: got %v", name, res)
		}
		must(t, stream.Send(&wigglev1.WorkRequest{})) // no bytes at all
		if res, err = stream.Receive(); err != nil || res.GetRevoked() != 0 {
			t.Errorf("%s: an empty message: %v, %v", name, res, err)
		}
		must(t, stream.CloseRequest())
		if _, err := stream.Receive(); !errors.Is(err, faults.ErrLeaseLost) {
			t.Errorf("%s: the stream ended with %v", name, err)
		}
	}

	raw := connect.NewClient[rawRequest, rawResponse](client, network.URL(serverName)+procedure,
		append(plain, connect.WithGRPC(), rpc.RawClientOption())...).CallBidiStream(t.Context())
	sent, err := proto.Marshal(&wigglev1.WorkRequest{Credits: 4})
	must(t, err)
	must(t, raw.Send(&rawRequest{Bytes: sent}))
	got, err := raw.Receive()
	must(t, err)
	res := &wigglev1.WorkResponse{}
	must(t, proto.Unmarshal(got.Bytes, res))
	if res.GetRevoked() != 4 {
		t.Errorf("got %v", res)
	}
	must(t, raw.CloseRequest())
	if _, err := raw.Receive(); !errors.Is(err, faults.ErrLeaseLost) {
		t.Errorf("the stream ended with %v", err)
	}
}

// jsonOf is a payload's value where the codec has put it beside the data.
func jsonOf(p *wigglev1.Payload) []byte {
	if len(p.GetData()) > 0 || p.GetJson() == nil {
		return nil
	}
	b, err := p.GetJson().MarshalJSON()
	if err != nil {
		return []byte(err.Error())
	}
	return []byte(strings.TrimSpace(string(b)))
}

// Text that is not of the schema, and a result that nobody can read, are refused as such.
func TestRawJSONRefusals(t *testing.T) {
	t.Parallel()
	server, err := rpc.NewServer(rpc.ServerConfig{})
	must(t, err)
	network := rpc.NewMemoryNetwork()
	procedure := wigglev1connect.WorkerServiceWorkProcedure
	server.Handle(procedure, connect.NewBidiStreamHandler(procedure, echo, server.RawOptions()...))
	listener, err := network.Listen(serverName)
	must(t, err)
	go server.Serve(listener)
	t.Cleanup(func() { must(t, server.Close()) })
	client := rpc.NewHTTPClient(rpc.ClientConfig{DialContext: network.DialContext})
	t.Cleanup(client.CloseIdleConnections)
	plain, err := rpc.NewClientOptions(rpc.ClientConfig{})
	must(t, err)
	// A message of another schema, in JSON.
	stream := connect.NewClient[wigglev1.StepReport, wigglev1.WorkResponse](client, network.URL(serverName)+procedure,
		append(plain, connect.WithCodec(rpc.NewClientJSONCodec(rpc.NewPayloads())))...).CallBidiStream(t.Context())
	must(t, stream.Send(&wigglev1.StepReport{TaskId: "x"}))
	if _, err := stream.Receive(); !errors.Is(err, faults.ErrInvalidArgument) || !strings.Contains(err.Error(), "taskId") {
		t.Errorf("got %v", err)
	}
}
