package rebuild

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/rpc"
	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/search/internal/document"
)

func draining(ctx context.Context) <-chan struct{} { return rpc.Draining(ctx) }

// resume is what is in the text by which a rebuild is taken up again.
type resume struct {
	Namespace string `json:"n,omitempty"`
	Workflow  string `json:"w,omitempty"`
	Shard     int    `json:"s"`
	After     string `json:"a,omitempty"`
	Read      int64  `json:"r"`
	Written   int64  `json:"d"`
}

func (r resume) encode() string {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // of strings and numbers
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func decodeResume(req *wigglev1.ReindexRequest) (resume, error) {
	at := resume{Namespace: req.GetNamespace(), Workflow: req.GetWorkflow()}
	if req.GetResume() == "" {
		return at, nil
	}
	var from resume
	b, err := base64.RawURLEncoding.DecodeString(req.GetResume())
	if err != nil || json.Unmarshal(b, &from) != nil || from.Shard < 0 || from.Read < 0 || from.Written < 0 {
		return at, faults.InvalidArgument("the text in resume is not one that this server gave")
	}
	if from.After != "" {
		if key, err := document.ParseKey(from.After); err != nil || key.Shard != from.Shard {
			return at, faults.InvalidArgument("the text in resume is not one that this server gave")
		}
	}
	if from.Namespace != at.Namespace || from.Workflow != at.Workflow {
		return at, faults.InvalidArgument("the text in resume belongs to a reindex of another namespace or workflow")
	}
	return from, nil
}

// Reindex reads all instances and writes their documents. send is told how far it is: at first, and after each part.
func (r *Rebuilder) Reindex(ctx context.Context, req *wigglev1.ReindexRequest, send func(*wigglev1.ReindexResponse) error) error {
	at, err := decodeResume(req)
	if err != nil {
		return err
	}
	leave, err := r.enter()
	if err != nil {
		return err
	}
	defer leave()
	rate := int64(req.GetRate())
	if rate == 0 {
		rate = defaultRate
	}
	total := r.total(ctx, req.GetNamespace(), req.GetWorkflow())
	tell := func(done bool) error {
		res := &wigglev1.ReindexResponse{Read: at.Read, Written: at.Written, Total: max(total, at.Read), Done: done}
		if !done {
			res.Resume = at.encode()
		}
		return send(res)
	}
	if err := tell(false); err != nil {
		return err
	}
	pace := pace{rate: rate, began: time.Now()}
	for _, shard := range r.shardsFrom(position{shard: at.Shard}) {
		if shard != at.Shard {
			at.Shard, at.After = shard, ""
		}
		for last := false; !last; {
			if last, err = r.reindexPart(ctx, &at); err != nil {
				return err
			}
			if err := tell(false); err != nil {
				return err
			}
			if err := pace.wait(ctx, at.Read); err != nil {
				return err
			}
		}
	}
	return tell(true)
}

// reindexPart reads and writes one part and moves on behind it.
func (r *Rebuilder) reindexPart(ctx context.Context, at *resume) (last bool, err error) {
	res, err := r.scan(ctx, &internalv1.ScanInstancesRequest{
		Shard: int32(at.Shard), AfterInstanceId: at.After, Limit: pageSize, //nolint:gosec // a shard fits
		Namespace: at.Namespace, Workflow: at.Workflow,
	})
	if err != nil {
		return false, err
	}
	docs := make([]*document.Document, 0, len(res.GetInstances()))
	for _, in := range res.GetInstances() {
		d, err := document.From(in)
		if err != nil {
			r.log.ErrorContext(ctx, "an instance cannot be indexed", slog.String("instance", in.GetId()), slog.Any("error", err))
			continue
		}
		docs = append(docs, d)
	}
	written, err := r.write(ctx, docs)
	if err != nil {
		return false, err
	}
	at.Written += int64(written)
	if n := len(res.GetInstances()); n > 0 {
		at.Read += int64(n)
		at.After = res.GetInstances()[n-1].GetId()
	}
	return res.GetLast(), nil
}

// pace keeps a reading within its rate.
type pace struct {
	rate  int64
	began time.Time
	first int64 // what was read before
	set   bool
}

// wait waits until so much may have been read.
func (p *pace) wait(ctx context.Context, read int64) error {
	if !p.set {
		p.set, p.first = true, max(read-pageSize, 0)
	}
	due := p.began.Add(time.Duration(float64(read-p.first) / float64(p.rate) * float64(time.Second)))
	return wait(ctx, time.Until(due))
}
