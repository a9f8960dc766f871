package rpc_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
)

func TestReadPayloads(t *testing.T) {
	t.Parallel()
	codec := rpc.NewServerJSONCodecs(rpc.NewPayloads())[0]
	for name, c := range map[string]struct{ body, data, contentType string }{
		"big integer":      {`{"input":{"json":9007199254740993}}`, `9007199254740993`, "application/json"},
		"huge":             {`{"input":{"json": [1e400, -0.10, 1E+2] }}`, `[1e400,-0.10,1E+2]`, "application/json"},
		"null":             {`{"input":{"json":null}}`, `null`, "application/json"},
		"nested":           {`{"input":{"json":{"json":{"data":"x"}}}}`, `{"json":{"data":"x"}}`, "application/json"},
		"strings":          {`{"input":{"json":"a \" } \\"}}`, `"a \" } \\"`, "application/json"},
		"content type":     {`{"input":{"json":1,"contentType":"application/json; x=y"}}`, `1`, "application/json; x=y"},
		"name in schema":   {`{"input":{"content_type":"application/json","json":1}}`, `1`, "application/json"},
		"escaped key":      {`{"input":{"\u006ason":1}}`, `1`, "application/json"},
		"unset others":     {`{"input":{"data":null,"json":1,"contentType":null}}`, `1`, "application/json"},
		"empty others":     {`{"input":{"data":"","contentType":"","json":1}}`, `1`, "application/json"},
		"data":             {`{"input":{"data":"eA==","contentType":"text/plain"}}`, `x`, "text/plain"},
		"space everywhere": {" { \"input\" :\n{ \"json\" :\t[ 1 , 2 ] } } ", `[1,2]`, "application/json"},
		"duplicate keys":   {`{"input":{"json":{"a":1,"a":2}}}`, `{"a":1,"a":2}`, "application/json"},
		"no payload":       {`{"workflow":"json"}`, ``, ""},
		"null payload":     {`{"input":null,"workflow":"json"}`, ``, ""},
	} {
		var req wigglev1.StartInstanceRequest
		if err := codec.Unmarshal([]byte(c.body), &req); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := string(req.GetInput().GetData()); got != c.data || req.GetInput().GetContentType() != c.contentType ||
			req.GetInput().GetJson() != nil {
			t.Errorf("%s: got %q of type %q", name, got, req.GetInput().GetContentType())
		}
	}
}

func TestReadPayloadsInListsAndOneofs(t *testing.T) {
	t.Parallel()
	codec := rpc.NewServerJSONCodecs(rpc.NewPayloads())[0]
	var batch wigglev1.StartInstancesRequest
	must(t, codec.Unmarshal([]byte(`{"starts":[{},{"input":{"json":1}},{"input":{"json":[2]}}]}`), &batch))
	if got := string(batch.GetStarts()[2].GetInput().GetData()); len(batch.GetStarts()) != 3 || got != "[2]" {
		t.Errorf("got %v", &batch)
	}
	var report wigglev1.ReportStepsRequest
	must(t, codec.Unmarshal([]byte(`{"reports":[{"taskId":"t","result":{"json":{"a":1}}}]}`), &report))
	if got := string(report.GetReports()[0].GetResult().GetData()); got != `{"a":1}` {
		t.Errorf("got %v", &report)
	}
	var payload wigglev1.Payload
	must(t, codec.Unmarshal([]byte(`{"json":1}`), &payload))
	if string(payload.GetData()) != "1" {
		t.Errorf("got %v", &payload)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()
	codec := rpc.NewServerJSONCodecs(rpc.NewPayloads())[0]
	for name, c := range map[string]struct{ body, want string }{
		"unknown field":    {`{"wrokflow":"x"}`, `unknown field "wrokflow"`},
		"unknown beside":   {`{"input":{"json":1},"wrokflow":"x"}`, `unknown field "wrokflow"`},
		"unknown within":   {`{"input":{"json":1,"jsn":2}}`, `unknown field "jsn"`},
		"both":             {`{"input":{"json":1,"data":"eA=="}}`, "input: data and json are both set"},
		"twice":            {`{"input":{"json":1,"json":2}}`, "input: json is set twice"},
		"not JSON":         {`{"input":{"json":}}`, "not JSON"},
		"not a JSON type":  {`{"input":{"json":1,"contentType":"text/plain"}}`, `content type "text/plain"`},
		"too deep":         {`{"input":{"json":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + `}}`, "1000 deep"},
		"empty":            {``, "empty"},
		"not UTF-8":        {"{\"input\":{\"json\":\"\xff\"}}", "UTF-8"},
		"not an object":    {`{"input":"json"}`, "unexpected token"},
		"array of nothing": {`["json"]`, "unexpected token"},
	} {
		var req wigglev1.StartInstanceRequest
		err := codec.Unmarshal([]byte(c.body), &req)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	var batch wigglev1.StartInstancesRequest
	err := codec.Unmarshal([]byte(`{"starts":[{},{"input":{"json":1,"data":"eA=="}}]}`), &batch)
	if err == nil || !strings.HasPrefix(err.Error(), "starts[1].input: ") {
		t.Errorf("got %v", err)
	}
	var lenient wigglev1.StartInstanceRequest
	must(t, rpc.NewClientJSONCodec(rpc.NewPayloads()).Unmarshal([]byte(`{"new":{"json":1},"input":{"json":1}}`), &lenient))
}

// What is wrong with a message that has secrets is told without a word of it.
func TestReadRepeatsNoSecret(t *testing.T) {
	t.Parallel()
	const secret = "4711081547110815"
	for _, codec := range []*rpc.JSONCodec{rpc.NewServerJSONCodecs(rpc.NewPayloads())[0], rpc.NewClientJSONCodec(rpc.NewPayloads())} {
		err := codec.Unmarshal([]byte(`{"name":"a","password":`+secret+`}`), &wigglev1.SignInRequest{})
		if err == nil || !strings.Contains(err.Error(), "the field password") || strings.Contains(err.Error(), secret) {
			t.Errorf("got %v", err)
		}
	}
}

func TestWritePayloads(t *testing.T) {
	t.Parallel()
	codec := rpc.NewServerJSONCodecs(rpc.NewPayloads())[1]
	for name, c := range map[string]struct {
		payload *wigglev1.Payload
		want    string
	}{
		"exact":       {&wigglev1.Payload{ContentType: "application/json", Data: []byte(`[9007199254740993, 1e400]`)}, `{"contentType":"application/json","json":[9007199254740993,1e400]}`},
		"no type":     {&wigglev1.Payload{Data: []byte(`{"a":1}`)}, `{"json":{"a":1}}`},
		"not JSON":    {&wigglev1.Payload{Data: []byte(`{"a"`)}, `{"data":"` + base64.StdEncoding.EncodeToString([]byte(`{"a"`)) + `"}`},
		"other type":  {&wigglev1.Payload{ContentType: "text/plain", Data: []byte(`1`)}, `{"contentType":"text/plain","data":"MQ=="}`},
		"empty":       {&wigglev1.Payload{}, `{}`},
		"null":        {&wigglev1.Payload{Data: []byte(`null`)}, `{"json":null}`},
		"value":       {&wigglev1.Payload{Json: structpb.NewNumberValue(1)}, `{"json":1}`},
		"placeholder": {&wigglev1.Payload{Data: []byte(`"payload-0"`)}, `{"json":"payload-0"}`},
	} {
		before := proto.CloneOf(c.payload)
		text, err := codec.MarshalStable(&wigglev1.GetInstanceResponse{Instance: &wigglev1.Instance{Context: c.payload}})
		must(t, err)
		if want := `{"instance":{"context":` + c.want + `}}`; string(text) != want {
			t.Errorf("%s: got %s, want %s", name, text, want)
		}
		if !proto.Equal(before, c.payload) {
			t.Errorf("%s: the message was changed to %v", name, c.payload)
		}
	}
	text, err := codec.MarshalAppend([]byte("x"), &wigglev1.Task{
		Results: []*wigglev1.BranchResult{{Result: &wigglev1.Payload{Data: []byte("1")}}, {}, {Result: &wigglev1.Payload{Data: []byte("[2]")}}},
		Context: &wigglev1.Payload{Data: []byte("3")}, TraceContext: map[string]string{"a": "b"},
	})
	must(t, err)
	var compact bytes.Buffer
	must(t, json.Compact(&compact, text[1:]))
	if want := `{"context":{"json":3},"results":[{"result":{"json":1}},{},{"result":{"json":[2]}}],"traceContext":{"a":"b"}}`; text[0] != 'x' || compact.String() != want {
		t.Errorf("got %s", text)
	}
}

func TestNormalize(t *testing.T) {
	t.Parallel()
	payloads := rpc.NewPayloads()
	req := &wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{
		{}, {Input: &wigglev1.Payload{Json: structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
			structpb.NewNumberValue(1), structpb.NewNullValue(),
		}})}},
	}}
	must(t, payloads.Normalize(req))
	if got := req.GetStarts()[1].GetInput(); string(got.GetData()) != "[1,null]" || got.GetJson() != nil ||
		got.GetContentType() != "application/json" {
		t.Errorf("got %v", got)
	}
	for want, payload := range map[string]*wigglev1.Payload{
		"both set":     {Data: []byte("1"), Json: structpb.NewNumberValue(1)},
		"NaN":          {Json: structpb.NewNumberValue(math.NaN())},
		"no value":     {Json: &structpb.Value{}},
		"content type": {ContentType: "text/plain", Json: structpb.NewNumberValue(1)},
	} {
		err := payloads.Normalize(&wigglev1.StartInstancesRequest{Starts: []*wigglev1.StartInstanceRequest{{Input: payload}}})
		fault, ok := errors.AsType[*faults.Error](err)
		if !ok || !strings.Contains(err.Error(), want) {
			t.Fatalf("%s: got %v", want, err)
		}
		if where := fault.ToProto().GetInvalid().GetProblems()[0].GetWhere(); where != "starts[0].input" {
			t.Errorf("%s: at %q", want, where)
		}
	}
	must(t, payloads.Normalize(nil))
	must(t, payloads.Normalize((*wigglev1.StartInstanceRequest)(nil)))
	must(t, payloads.Normalize(&wigglev1.GetInstanceRequest{}))
}

func FuzzReadAnything(f *testing.F) {
	codec := rpc.NewServerJSONCodecs(rpc.NewPayloads())[0]
	plain := rpc.NewClientJSONCodec(rpc.NewPayloads())
	for _, seed := range []string{
		`{"starts":[{"input":{"json":{"a":[1e400,"\u006a"]}}}]}`, `{"starts":{"json":1}}`, `{"starts":[{"input":{"data":"eA==","json":1}}]}`,
		`{"\u0073tarts":[null,{"input":null}]}`, `{"starts":[{"traceContext":{"json":"x"},"input":{"json":"}\\\""}}]}`, `json`, `{"json"`, `[{"json":1}]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, c := range []*rpc.JSONCodec{codec, plain} {
			var req wigglev1.StartInstancesRequest
			if err := c.Unmarshal(body, &req); err != nil {
				continue
			}
			for _, start := range req.GetStarts() {
				if start.GetInput().GetJson() != nil {
					t.Fatalf("json is left in %v", start)
				}
			}
			text, err := c.Marshal(&req)
			if err != nil {
				t.Fatalf("write %v: %v", &req, err)
			}
			var again wigglev1.StartInstancesRequest
			if err := c.Unmarshal(text, &again); err != nil {
				t.Fatalf("read again %s: %v", text, err)
			}
			if !proto.Equal(canonical(&req), canonical(&again)) {
				t.Fatalf("%v came back as %v", &req, &again)
			}
		}
	})
}

// canonical compacts what the codec may: the space in JSON, and the content type that says nothing.
func canonical(req *wigglev1.StartInstancesRequest) *wigglev1.StartInstancesRequest {
	req = proto.CloneOf(req)
	for _, start := range req.GetStarts() {
		input := start.GetInput()
		var compact bytes.Buffer
		if input == nil || json.Compact(&compact, input.GetData()) != nil {
			continue
		}
		input.Data = compact.Bytes()
		if input.GetContentType() == "" {
			input.ContentType = "application/json"
		}
	}
	return req
}

func FuzzPayloadRoundTrip(f *testing.F) {
	codec := rpc.NewServerJSONCodecs(rpc.NewPayloads())[0]
	f.Add([]byte(`{"n":9007199254740993,"m":1e400}`), "application/json")
	f.Add([]byte(`"payload-`), "")
	f.Add([]byte(` [ -0.0 , "é" ] `), "text/plain")
	f.Fuzz(func(t *testing.T, data []byte, contentType string) {
		in := &wigglev1.Payload{ContentType: strings.ToValidUTF8(contentType, "?"), Data: data}
		text, err := codec.Marshal(&wigglev1.Instance{Context: in, Id: `"json"`})
		must(t, err)
		if !json.Valid(text) {
			t.Fatalf("not JSON: %s", text)
		}
		var out wigglev1.Instance
		must(t, codec.Unmarshal(text, &out))
		got := out.GetContext().GetData()
		if bytes.Equal(got, data) {
			return
		}
		var a, b any
		if decode(data, &a) != nil || decode(got, &b) != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("%q came back as %q", data, got)
		}
	})
}

// decode reads JSON with numbers as text.
func decode(text []byte, into *any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}

func BenchmarkNormalizeWithoutJSON(b *testing.B) {
	payloads := rpc.NewPayloads()
	req := &wigglev1.StartInstanceRequest{Workflow: "w", Input: &wigglev1.Payload{Data: []byte("1")}}
	b.ReportAllocs()
	for b.Loop() {
		if err := payloads.Normalize(req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValidate(b *testing.B) {
	validator, err := rpc.NewValidator()
	if err != nil {
		b.Fatal(err)
	}
	req := &wigglev1.StartInstanceRequest{Workflow: "w", Input: &wigglev1.Payload{Data: []byte("1")}}
	b.ReportAllocs()
	for b.Loop() {
		if err := validator.Validate(req); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadJSON(b *testing.B) {
	codec := rpc.NewServerJSONCodecs(rpc.NewPayloads())[0]
	body := []byte(`{"workflow":"w","input":{"json":{"order":"` + strings.Repeat("x", 1000) + `","n":9007199254740993}}}`)
	b.ReportAllocs()
	for b.Loop() {
		var req wigglev1.StartInstanceRequest
		if err := codec.Unmarshal(body, &req); err != nil {
			b.Fatal(err)
		}
	}
}
