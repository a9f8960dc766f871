package memstore

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

type definitionKey struct {
	namespace, workflow string
	version             int32
}

func keyOf(d store.Definition) definitionKey {
	return definitionKey{namespace: d.Namespace, workflow: d.Workflow, version: d.Version}
}

// definitions is the part of a store that Update does not write.
type definitions struct {
	mu       sync.RWMutex // guards what follows
	byKey    map[definitionKey]store.Definition
	revision int64
}

// filter lists what matches, in no order. mu is held.
func (ds *definitions) filter(match func(store.Definition) bool) []store.Definition {
	var list []store.Definition
	for _, d := range ds.byKey {
		if match(d) {
			list = append(list, d)
		}
	}
	return list
}

// versions lists a workflow's versions, lowest first. mu is held.
func (ds *definitions) versions(namespace, workflow string) []store.Definition {
	list := ds.filter(func(d store.Definition) bool { return d.Namespace == namespace && d.Workflow == workflow })
	slices.SortFunc(list, func(a, b store.Definition) int { return cmp.Compare(a.Version, b.Version) })
	return list
}

func (ds *definitions) latest(namespace, workflow string) (store.Definition, bool) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	versions := ds.versions(namespace, workflow)
	if len(versions) == 0 {
		return store.Definition{}, false
	}
	return versions[len(versions)-1], true
}

// Register implements [store.Definitions].
func (s *Store) Register(ctx context.Context, namespace, workflow string, choose store.Choose) (store.Definition, bool, error) {
	if err := ctx.Err(); err != nil {
		return store.Definition{}, false, err
	}
	s.defs.mu.Lock()
	defer s.defs.mu.Unlock()
	d, err := choose(s.defs.versions(namespace, workflow))
	if err != nil {
		return store.Definition{}, false, err
	}
	d.Namespace, d.Workflow = namespace, workflow
	if stored, ok := s.defs.byKey[keyOf(d)]; ok {
		if stored.Fingerprint != d.Fingerprint {
			return store.Definition{}, false, store.ErrConflict
		}
		return stored, false, nil
	}
	s.defs.revision++
	d.Revision, d.RegisteredAt = s.defs.revision, s.now()
	s.defs.byKey[keyOf(d)] = d
	return d, true, nil
}

// PutDefinitions implements [store.Definitions].
func (s *Store) PutDefinitions(ctx context.Context, list []store.Definition) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.defs.mu.Lock()
	defer s.defs.mu.Unlock()
	revisions := map[int64]definitionKey{}
	for key, d := range s.defs.byKey {
		revisions[d.Revision] = key
	}
	fresh := map[definitionKey]store.Definition{}
	for _, d := range list {
		key := keyOf(d)
		stored, ok := s.defs.byKey[key]
		if !ok {
			stored, ok = fresh[key]
		}
		if other, taken := revisions[d.Revision]; (taken && other != key) || (ok && stored.Fingerprint != d.Fingerprint) {
			return 0, store.ErrConflict
		}
		if !ok {
			d.RegisteredAt = micro(d.RegisteredAt)
			fresh[key], revisions[d.Revision] = d, key
		}
	}
	for key, d := range fresh {
		s.defs.byKey[key] = d
		s.defs.revision = max(s.defs.revision, d.Revision)
	}
	return s.defs.revision, nil
}

// ListDefinitions implements [store.Definitions].
func (s *Store) ListDefinitions(ctx context.Context, q store.DefinitionQuery) ([]store.Definition, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.defs.mu.RLock()
	defer s.defs.mu.RUnlock()
	list := s.defs.filter(func(d store.Definition) bool {
		return d.Revision > q.AfterRevision &&
			(q.Namespace == "" || d.Namespace == q.Namespace) && (q.Workflow == "" || d.Workflow == q.Workflow)
	})
	slices.SortFunc(list, func(a, b store.Definition) int { return cmp.Compare(a.Revision, b.Revision) })
	return list[:min(q.Limit, len(list))], nil
}

// Definition implements [store.Definitions].
func (s *Store) Definition(ctx context.Context, namespace, workflow string, version int32) (store.Definition, error) {
	if err := ctx.Err(); err != nil {
		return store.Definition{}, err
	}
	if version == 0 {
		if d, ok := s.defs.latest(namespace, workflow); ok {
			return d, nil
		}
		return store.Definition{}, store.ErrNotFound
	}
	s.defs.mu.RLock()
	defer s.defs.mu.RUnlock()
	if d, ok := s.defs.byKey[definitionKey{namespace: namespace, workflow: workflow, version: version}]; ok {
		return d, nil
	}
	return store.Definition{}, store.ErrNotFound
}

// Revision implements [store.Definitions].
func (s *Store) Revision(ctx context.Context) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.defs.mu.RLock()
	defer s.defs.mu.RUnlock()
	return s.defs.revision, nil
}
