package guard

import (
	"context"
	"slices"

	"github.com/wiggle-run/wiggle/pkg/faults"
	"github.com/wiggle-run/wiggle/pkg/identity"
	"github.com/wiggle-run/wiggle/pkg/permission"
	"github.com/wiggle-run/wiggle/services/router/internal/subject"
)

// maxItems is how many items a call may have, as the schemas have it.
const maxItems = 1000

// Resolver tells what ids stand for. Answers are in the order of the ids. It fails if that cannot be found out now.
type Resolver interface {
	// Instances tells the namespaces and workflows of instances.
	Instances(ctx context.Context, ids []string) ([]subject.Subject, error)
	// Tasks tells the namespaces and queues of tasks.
	Tasks(ctx context.Context, ids []string) ([]subject.Subject, error)
}

// Limits are those of a caller whose permission for the action of the call is limited. They do not change.
type Limits struct {
	principal *identity.Principal
	action    string
	scopes    []permission.Scope
	resolver  Resolver
	refused   func(ctx context.Context, target string, errs ...error) // one, or those of items
}

type limitsKey struct{}

// Of returns the limits of the caller; nil if its permission for the call is not limited, and everything is allowed.
func Of(ctx context.Context) *Limits {
	l, _ := ctx.Value(limitsKey{}).(*Limits)
	return l
}

type verdictsKey struct{}

// Denied returns for each item of a batch why the caller may not do it, nil for those that it may; nil if it may do all.
func Denied(ctx context.Context) []error {
	errs, _ := ctx.Value(verdictsKey{}).([]error)
	return errs
}

// allows tells whether the caller may do it on the subject.
func (l *Limits) allows(s subject.Subject) bool {
	return s.Found && slices.ContainsFunc(l.scopes, func(scope permission.Scope) bool { return scope.Matches(s.Namespace, s.Name) })
}

// sees tells whether a list of the subjects, where an empty name is any, can have something that the caller may see.
func (l *Limits) sees(s subject.Subject) bool {
	return slices.ContainsFunc(l.scopes, func(scope permission.Scope) bool {
		return scope.Namespace.Matches(s.Namespace) && (s.Name == "" || scope.Name.Matches(s.Name))
	})
}

// missing is the error for what the caller may not do.
func (l *Limits) missing(s subject.Subject) error {
	name := s.Name
	if name == "" {
		name = string(permission.Any)
	}
	has := make([]string, 0, len(l.scopes))
	for _, scope := range l.scopes {
		has = append(has, l.action+":"+scope.String())
	}
	return faults.PermissionDenied(l.action+":"+s.Namespace+"/"+name, l.principal.String(), has...)
}

// named judges things that are named: nil, or why not.
func (l *Limits) named(s subject.Subject) error {
	if l.allows(s) {
		return nil
	}
	return l.missing(s)
}

// judge holds a call to the limits: an error for the call, or one for each item that is denied.
func (l *Limits) judge(ctx context.Context, a about) (items []error, err error) {
	if max(len(a.items), len(a.instances), len(a.tasks)) > maxItems {
		return nil, faults.InvalidArgument("the call has more than %d items; split it", maxItems)
	}
	for _, s := range a.all {
		if err := l.named(s); err != nil {
			return nil, err
		}
	}
	for _, s := range a.filter {
		if !l.sees(s) {
			return nil, l.missing(s)
		}
	}
	items = each(a.items, l.named)
	for _, ids := range []struct {
		thing string
		ids   []string
	}{{thingInstance, a.instances}, {thingTask, a.tasks}} {
		if len(ids.ids) == 0 {
			continue
		}
		if items, err = l.ids(ctx, ids.thing, ids.ids); err != nil {
			return nil, err
		}
		if !a.batch {
			return nil, items[0]
		}
	}
	if !slices.ContainsFunc(items, func(err error) bool { return err != nil }) {
		items = nil
	}
	if items == nil && len(a.all) == 0 && len(a.items) == 0 && len(a.instances) == 0 && len(a.tasks) == 0 && !a.lists {
		return nil, faults.PermissionDenied(l.action, l.principal.String()) // about nothing that the limits could hold
	}
	return items, nil
}

const (
	thingInstance = "instance"
	thingTask     = "task"
)

// ids judges things by their ids. That one does not exist is told in the words in which it is denied.
func (l *Limits) ids(ctx context.Context, thing string, ids []string) ([]error, error) {
	if l.resolver == nil {
		return nil, faults.Unimplemented("this router cannot tell what an id stands for, which it must for %s,"+
			" whose permission %s is limited", l.principal, l.action)
	}
	resolve := l.resolver.Instances
	if thing == thingTask {
		resolve = l.resolver.Tasks
	}
	subjects, err := resolve(ctx, ids)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(ids))
	for i, id := range ids {
		switch {
		case i < len(subjects) && subjects[i].Err != nil:
			errs[i] = subjects[i].Err
		case i >= len(subjects) || !l.allows(subjects[i]):
			if thing == thingTask {
				id, _ = subject.SplitTask(id)
			}
			errs[i] = faults.PermissionDeniedOn(l.action, l.principal.String(), thing, id)
		}
	}
	return errs, nil
}

// Queues judges from which queues the caller may take tasks, at the beginning of a stream.
func (l *Limits) Queues(ctx context.Context, namespace string, queues []string) error {
	for _, s := range Queues(namespace, queues) {
		if err := l.named(s); err != nil {
			l.refused(ctx, s.Namespace+"/"+s.Name, err)
			return err
		}
	}
	return nil
}

// Tasks judges tasks that a message of a stream is about: an error for each that the caller may have nothing to do with, and for
// each of which that cannot be found out now.
func (l *Limits) Tasks(ctx context.Context, ids []string) []error {
	if len(ids) == 0 {
		return nil
	}
	errs, err := l.ids(ctx, thingTask, ids)
	if err != nil {
		return slices.Repeat([]error{err}, len(ids))
	}
	if first := slices.IndexFunc(errs, isDenied); first >= 0 {
		id, _ := subject.SplitTask(ids[first])
		l.refused(ctx, id, errs...)
	}
	return errs
}
