package guard

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	"github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
)

// Streams tells whether its messages come one after the other, in one direction at least.
func (r *Rule) Streams() bool { return r.stream }

// access is who may make a call.
type access int

const (
	byAction access = iota
	anyone
	signedIn
	services // of the cluster
)

// Rule is what a procedure needs.
type Rule struct {
	// Procedure is the path of the call.
	Procedure string
	// Action is what a principal needs a permission for; empty where it needs none.
	Action string
	// Needs says it for people: the action with the form of its scope, "anyone", "signed in" or "services".
	Needs string

	access  access
	scoped  bool
	stream  bool
	about   func(proto.Message) about // nil: nothing
	audited bool
	waits   bool // it may last: it ends with its caller's credential
	toAuth  bool // the auth service wants to know from where the call came
}

const (
	authServicePath = "/" + wigglev1connect.AuthServiceName + "/"
	internalPackage = "wiggle.internal."
)

// foreign are the rules of the services that every server has, whose schemas are not ours: balancers that ask for the health have
// no key, and what the schemas are is for those who may call something.
func foreign() map[string]*Rule {
	rules := map[string]*Rule{}
	for _, method := range []string{"Check", "Watch"} {
		r := &Rule{
			Procedure: "/" + grpchealth.HealthV1ServiceName + "/" + method, Needs: "anyone", access: anyone, stream: method == "Watch",
		}
		rules[r.Procedure] = r
	}
	for _, service := range []string{grpcreflect.ReflectV1ServiceName, grpcreflect.ReflectV1AlphaServiceName} {
		r := &Rule{Procedure: "/" + service + "/ServerReflectionInfo", Needs: "signed in", access: signedIn, stream: true, waits: true}
		rules[r.Procedure] = r
	}
	return rules
}

// Rules makes the rules of services, by procedure, with those of health and reflection. It fails if a procedure has no
// permission in its schema, or one that is limited by names of which nothing tells where the messages have them.
func Rules(names ...string) (map[string]*Rule, error) {
	rules := foreign()
	var problems []error
	for _, name := range names {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		service, ok := d.(protoreflect.ServiceDescriptor)
		if err != nil || !ok {
			problems = append(problems, fmt.Errorf("guard: there is no schema of the service %s", name))
			continue
		}
		for i := range service.Methods().Len() {
			rule, err := ruleOf(service.Methods().Get(i))
			if err != nil {
				problems = append(problems, err)
				continue
			}
			rules[rule.Procedure] = rule
		}
	}
	return rules, errors.Join(problems...)
}

func ruleOf(m protoreflect.MethodDescriptor) (*Rule, error) {
	service := string(m.Parent().FullName())
	r := &Rule{
		Procedure: "/" + service + "/" + string(m.Name()), stream: m.IsStreamingClient() || m.IsStreamingServer(),
	}
	r.about, r.waits = abouts[r.Procedure], r.stream || slices.Contains(waiting, r.Procedure)
	if strings.HasPrefix(service, internalPackage) {
		r.access, r.Needs = services, "services"
		return r, nil
	}
	r.toAuth = slices.Contains(authServices, service)
	p, ok := proto.GetExtension(m.Options(), wigglev1.E_Permission).(*wigglev1.Permission)
	if !ok || p == nil {
		return nil, fmt.Errorf("guard: %s declares no permission: give it the option (wiggle.v1.permission)", m.FullName())
	}
	return r, r.declare(m, p)
}

// declare takes over what the schema says.
func (r *Rule) declare(m protoreflect.MethodDescriptor, p *wigglev1.Permission) error {
	switch p.GetAccess() {
	case wigglev1.Access_ACCESS_ANYONE:
		r.access, r.Needs = anyone, "anyone"
		return nil
	case wigglev1.Access_ACCESS_SIGNED_IN:
		r.access, r.Needs = signedIn, "signed in"
		return nil
	default:
	}
	r.Action, r.Needs = p.GetAction(), "`"+p.GetAction()+"`"
	if r.Action == "" {
		return fmt.Errorf("guard: %s declares a permission without an action", m.FullName())
	}
	r.audited = slices.Contains(operators, r.Action)
	switch p.GetScope() {
	case wigglev1.Scope_SCOPE_WORKFLOW:
		r.scoped, r.Needs = true, r.Needs+", namespace/workflow"
	case wigglev1.Scope_SCOPE_QUEUE:
		r.scoped, r.Needs = true, r.Needs+", namespace/queue"
	default:
	}
	if r.scoped && r.about == nil && !slices.Contains(checkedInside, r.Procedure) {
		return fmt.Errorf("guard: %s is limited by %s, and subjects.go does not say where its messages name one",
			m.FullName(), strings.ToLower(p.GetScope().String()))
	}
	return nil
}

// operators are the actions that are recorded also when they are allowed (AUT-8). What is done to accounts, roles and keys
// the auth service records itself.
var operators = []string{"instance.cancel", "schedule.manage", "workflow.register", "search.manage", "event.manage"}

// waiting are the unary calls that may last.
var waiting = []string{
	wigglev1connect.WorkerServicePollTasksProcedure, wigglev1connect.InstanceServiceWaitInstanceProcedure,
	wigglev1connect.EventServicePollEventsProcedure,
}

// checkedInside are the streams whose messages their handler holds to the caller's limits; see [Of].
var checkedInside = []string{wigglev1connect.WorkerServiceWorkProcedure}

// authServices are those that the auth service serves.
var authServices = []string{
	wigglev1connect.AuthServiceName, wigglev1connect.AccountServiceName, wigglev1connect.RoleServiceName,
	wigglev1connect.KeyServiceName, wigglev1connect.AuditServiceName,
}
