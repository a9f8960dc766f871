package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// define makes a definition whose graph is told apart by its content.
func define(workflow string, version int32, content string) store.Definition {
	return store.Definition{
		Namespace: namespace, Workflow: workflow, Version: version, Fingerprint: sha256.Sum256([]byte(content)),
		Graph: &wigglev1.Definition{Name: workflow, Version: version, Start: content, Nodes: map[string]*wigglev1.Node{"end": end()}},
	}
}

// register registers a definition under its version.
func (s *shard) register(workflow string, version int32, content string) store.Definition {
	s.Helper()
	d, _, err := s.Register(s.Context(), namespace, workflow, func([]store.Definition) (store.Definition, error) {
		return define(workflow, version, content), nil
	})
	s.must(err)
	return d
}

func testRegister(s *shard) {
	first := s.register("w", 2, "two")
	if first.Revision != 1 || first.RegisteredAt.IsZero() {
		s.Errorf("registered %+v", first)
	}
	s.register("v", 1, "other")
	again, created, err := s.Register(s.Context(), namespace, "w", func(versions []store.Definition) (store.Definition, error) {
		if len(versions) != 1 || versions[0].Version != 2 || !proto.Equal(versions[0].Graph, first.Graph) {
			s.Errorf("versions are %+v", versions)
		}
		return versions[0], nil
	})
	if err != nil || created || again.Revision != 1 || !again.RegisteredAt.Equal(first.RegisteredAt) {
		s.Errorf("registered again: %+v, %v, %v", again, created, err)
	}
	if third := s.register("w", 3, "three"); third.Revision != 3 {
		s.Errorf("the third has revision %d", third.Revision)
	}
	_, _, err = s.Register(s.Context(), namespace, "w", func(versions []store.Definition) (store.Definition, error) {
		if len(versions) != 2 || versions[0].Version != 2 || versions[1].Version != 3 {
			s.Errorf("versions are %+v", versions)
		}
		return define("w", 2, "something else"), nil
	})
	if !errors.Is(err, store.ErrConflict) {
		s.Errorf("another graph under a version gives %v", err)
	}
	refuse := errors.New("no")
	if _, _, err = s.Register(s.Context(), namespace, "w", func([]store.Definition) (store.Definition, error) {
		return store.Definition{}, refuse
	}); !errors.Is(err, refuse) {
		s.Errorf("choose's error becomes %v", err)
	}
	s.expectDefinition(0, "three")
	s.expectDefinition(2, "two")
	if _, err := s.Definition(s.Context(), namespace, "w", 9); !errors.Is(err, store.ErrNotFound) {
		s.Errorf("a version that is not there gives %v", err)
	}
	if _, err := s.Definition(s.Context(), "other", "w", 0); !errors.Is(err, store.ErrNotFound) {
		s.Errorf("a workflow that is not there gives %v", err)
	}
}

func (s *shard) expectDefinition(version int32, content string) {
	s.Helper()
	const workflow = "w"
	d, err := s.Definition(s.Context(), namespace, workflow, version)
	s.must(err)
	want := define(workflow, d.Version, content)
	if d.Fingerprint != want.Fingerprint || !proto.Equal(d.Graph, want.Graph) || d.Namespace != namespace || d.Workflow != workflow {
		s.Errorf("definition is %+v", d)
	}
}

// Revisions follow each other without a gap, whoever registers at the same time.
func testRegisterConcurrently(s *shard) {
	const writers, each = 4, 5
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for range each {
				_, created, err := s.Register(s.Context(), namespace, "w", func(versions []store.Definition) (store.Definition, error) {
					return define("w", int32(len(versions)+1), fmt.Sprintf("%d of %d", len(versions), i)), nil //nolint:gosec // few
				})
				if err != nil || !created {
					s.Errorf("registered: %v, %v", created, err)
				}
			}
		})
	}
	wg.Wait()
	list, err := s.ListDefinitions(s.Context(), store.DefinitionQuery{Limit: 100})
	s.must(err)
	for i, d := range list {
		if d.Revision != int64(i+1) || d.Version != int32(i+1) {
			s.Errorf("definition %d has revision %d and version %d", i, d.Revision, d.Version)
		}
	}
	if len(list) != writers*each {
		s.Errorf("%d definitions", len(list))
	}
}

func testPutDefinitions(s *shard) {
	now := s.tick("a", 0).Now
	put := func(revision int64, d store.Definition) store.Definition {
		d.Revision, d.RegisteredAt = revision, now
		return d
	}
	one, two := put(1, define("w", 1, "one")), put(2, define("w", 2, "two"))
	if got, err := s.PutDefinitions(s.Context(), nil); got != 0 || err != nil {
		s.Errorf("none: %d, %v", got, err)
	}
	for range 2 {
		if got, err := s.PutDefinitions(s.Context(), []store.Definition{two, one}); got != 2 || err != nil {
			s.Errorf("put: revision %d, %v", got, err)
		}
	}
	stored, err := s.Definition(s.Context(), namespace, "w", 2)
	if err != nil || stored.Revision != 2 || !stored.RegisteredAt.Equal(now) {
		s.Errorf("stored %+v, %v", stored, err)
	}
	for name, bad := range map[string]store.Definition{
		"another graph under the version":  put(3, define("w", 2, "other")),
		"another graph under the revision": put(2, define("v", 1, "other")),
	} {
		good := put(4, define("w", 4, "four"))
		if _, err := s.PutDefinitions(s.Context(), []store.Definition{good, bad}); !errors.Is(err, store.ErrConflict) {
			s.Errorf("%s gives %v", name, err)
		}
		if got, err := s.Revision(s.Context()); got != 2 || err != nil {
			s.Errorf("%s: the revision is %d then, %v", name, got, err)
		}
	}
	s.expectDefinition(0, "two")
	if next := s.register("w", 9, "nine"); next.Revision != 3 {
		s.Errorf("registered after put with revision %d", next.Revision)
	}
}

func testListDefinitions(s *shard) {
	for i, workflow := range []string{"v", "w", "v", "x"} {
		s.register(workflow, int32(i+1), workflow)
	}
	for name, test := range map[string]struct {
		query store.DefinitionQuery
		want  []int64
	}{
		"all":       {store.DefinitionQuery{Limit: 10}, []int64{1, 2, 3, 4}},
		"page":      {store.DefinitionQuery{Limit: 2, AfterRevision: 1}, []int64{2, 3}},
		"workflow":  {store.DefinitionQuery{Limit: 10, Namespace: namespace, Workflow: "v"}, []int64{1, 3}},
		"namespace": {store.DefinitionQuery{Limit: 10, Namespace: "other"}, nil},
	} {
		list, err := s.ListDefinitions(s.Context(), test.query)
		s.must(err)
		var got []int64
		for _, d := range list {
			got = append(got, d.Revision)
		}
		if !slices.Equal(got, test.want) {
			s.Errorf("%s: revisions %v, want %v", name, got, test.want)
		}
	}
	if got, err := s.Revision(s.Context()); got != 4 || err != nil {
		s.Errorf("revision %d, %v", got, err)
	}
}

// apply may read definitions while its Update runs.
func testDefinitionsInApply(s *shard) {
	s.register("w", 1, "one")
	s.must(s.Update(s.Context(), store.Keys{}, func(*store.World) error {
		s.expectDefinition(0, "one")
		_, err := s.Revision(context.WithoutCancel(s.Context()))
		return err
	}))
}
