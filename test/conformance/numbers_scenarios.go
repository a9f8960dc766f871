package conformance

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wiggle "github.com/wiggle-run/wiggle/sdk/go"
)

// exact are numbers that a float64 does not hold, or would write otherwise.
const exact = `[9007199254740993,-9007199254740995,18446744073709551617,123456789012345678901234567890,` +
	`0.1000000000000000055511151231257827,3.14159265358979323846264338327950288,1.10,1e2,1E+400,-0.0,100000000000000000000000]`

func numbers() []Scenario {
	return []Scenario{
		{
			Name: "numbers pass a chain as they were written", Covers: "WF-9", Flow: chain("numbers", "a", "b"), Input: `{"n":` + exact + `}`,
			Answers: map[string]Answer{"a": Wrap("a")},
			Want:    Want{State: completed, Context: `{"a":{"n":` + exact + `}}`},
		},
		{
			Name: "numbers pass a for_each and its combine as they were written", Covers: "WF-9 ENG-6 ENG-8", Flow: each("numbers"),
			Input: `{"items":` + exact + `}`, Answers: map[string]Answer{"gather": Collect},
			Want: Want{State: completed, Context: exact},
		},
		{
			Name: "numbers inside of elements stay as they were written", Covers: "WF-9 ENG-6", Flow: nested(2), Input: `[[{"n":` + exact + `}]]`,
			Answers: map[string]Answer{"leaf": Wrap("v"), "c1": Collect, "c2": Collect},
			Want:    Want{State: completed, Context: `[[{"v":{"n":` + exact + `}}]]`},
		},
		{
			Name: "numbers pass a fork as they were written", Covers: "WF-9 ENG-8", Flow: pair("numbers"), Input: exact,
			Answers: map[string]Answer{"l": Wrap("l"), "merge": Collect},
			Want:    Want{State: completed, Context: `{"left":{"l":` + exact + `},"right":` + exact + `}`},
		},
		{Name: "numbers pass the JSON codec as they were written", Covers: "WF-9 WRK-1", Flow: each("json"), Script: jsonNumbers},
		{Name: "a JSON client reads what is not JSON as bytes", Covers: "WF-9 WRK-1", Flow: chain("json", "a"), Script: jsonBytes},
		{
			Name: "an instant keeps its fraction", Covers: "WF-9 WF-2",
			Flow: wiggle.Define("fraction", func(f *wiggle.Flow) { f.SleepUntil("/at") }), Input: `{"at":1700000000.123456789}`,
			Want: Want{State: completed, Context: `{"at":1700000000.123456789}`, Attempts: map[string]int{}},
		},
	}
}

// JSON makes a call as a plain JSON client does and returns the answer's text.
func (r *Run) JSON(method, body string) string {
	r.Helper()
	req, err := http.NewRequestWithContext(r.ctx, http.MethodPost, r.URL+"/wiggle.v1."+method, strings.NewReader(body))
	if err != nil {
		r.Fatalf("%s: %v", method, err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := r.HTTP.Do(req)
	if err != nil {
		r.Fatalf("%s: %v", method, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		r.Fatalf("%s: %s %s (%v)", method, res.Status, text, err)
	}
	return string(text)
}

// read decodes a JSON answer, keeping payloads as text.
func (r *Run) read(text string, into any) {
	r.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		r.Fatalf("%s is not JSON: %v", text, err)
	}
}

// jsonPayload and jsonTask are messages as a JSON client sees them.
type jsonPayload struct {
	ContentType string          `json:"contentType"`
	JSON        json.RawMessage `json:"json"`
	Data        []byte          `json:"data"`
}

type jsonTask struct {
	ID      string      `json:"id"`
	Lease   string      `json:"lease"`
	Step    string      `json:"step"`
	Context jsonPayload `json:"context"`
	Results []struct {
		Result jsonPayload `json:"result"`
	} `json:"results"`
}

// jsonTasks polls as a JSON client until there are tasks.
func (r *Run) jsonTasks() []jsonTask {
	r.Helper()
	for r.ctx.Err() == nil {
		var res struct {
			Tasks []jsonTask `json:"tasks"`
		}
		r.read(r.JSON("WorkerService/PollTasks", `{"worker":"json","maxTasks":1000,"wait":"0.1s","workflows":[{"workflow":"`+r.Workflow+`"}]}`), &res)
		if len(res.Tasks) > 0 {
			return res.Tasks
		}
	}
	r.Fatalf("no task came")
	return nil
}

func (r *Run) jsonReport(t jsonTask, value string) {
	r.Helper()
	text := r.JSON("WorkerService/ReportSteps",
		`{"worker":"json","reports":[{"taskId":"`+t.ID+`","lease":"`+t.Lease+`","result":{"json":`+value+`}}]}`)
	if strings.Contains(text, "fault") {
		r.Errorf("report: %s", text)
	}
}

func jsonNumbers(r *Run) {
	var started struct {
		InstanceID string `json:"instanceId"`
	}
	r.read(r.JSON("InstanceService/StartInstance", `{"workflow":"`+r.Workflow+`","input":{"json":{"items":`+exact+`}}}`), &started)
	r.ID = started.InstanceID
	var numbers []json.RawMessage
	r.read(exact, &numbers)
	for done := 0; done < len(numbers); {
		for _, t := range r.jsonTasks() {
			r.jsonReport(t, string(t.Context.JSON))
			done++
		}
	}
	gather := r.jsonTasks()[0]
	if !SameJSON(r.T, gather.Context.JSON, []byte(`{"items":`+exact+`}`)) {
		r.Errorf("the combine's context is %s", gather.Context.JSON)
	}
	results := make([]json.RawMessage, len(gather.Results))
	for i, res := range gather.Results {
		results[i] = res.Result.JSON
	}
	r.jsonReport(gather, encode(results))
	var got struct {
		Instance struct {
			Context jsonPayload `json:"context"`
		} `json:"instance"`
	}
	r.read(r.JSON("InstanceService/GetInstance", `{"instanceId":"`+r.ID+`"}`), &got)
	if !SameJSON(r.T, got.Instance.Context.JSON, []byte(exact)) {
		r.Errorf("the result is %s, want %s", got.Instance.Context.JSON, exact)
	}
	r.See(Want{State: completed, Context: exact})
}

func jsonBytes(r *Run) {
	r.Start("", func(q *wigglev1.StartInstanceRequest) { q.Input = cbor() })
	t := r.jsonTasks()[0]
	got := &wigglev1.Payload{ContentType: t.Context.ContentType, Data: t.Context.Data}
	if t.Context.JSON != nil {
		r.Errorf("bytes came as JSON: %s", t.Context.JSON)
	}
	r.sameBytes("the context", got, cbor())
	r.jsonReport(t, `{"n":12345678901234567890}`)
	r.See(Want{State: completed, Context: `{"n":12345678901234567890}`})
}
