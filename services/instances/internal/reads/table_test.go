package reads_test

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	internalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/instances/internal/reads"
)

// TestTable holds the table against the services that an instances process offers (REP-4): every procedure is in it, and
// none that the protos say only reads is there as a change.
func TestTable(t *testing.T) {
	t.Parallel()
	for _, file := range []protoreflect.FileDescriptor{
		wigglev1.File_wiggle_v1_instance_service_proto, wigglev1.File_wiggle_v1_worker_service_proto,
		wigglev1.File_wiggle_v1_workflow_service_proto, wigglev1.File_wiggle_v1_event_service_proto,
		internalv1.File_wiggle_internal_v1_shard_service_proto, internalv1.File_wiggle_internal_v1_scope_service_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				procedure := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
				freshness, ok := reads.FreshnessOf(procedure)
				if !ok {
					t.Errorf("%s is not in the table: may it be answered from a replica?", procedure)
				}
				options, _ := m.Options().(*descriptorpb.MethodOptions)
				readOnly := options.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
				internal := file == internalv1.File_wiggle_internal_v1_shard_service_proto // which does not say
				if readOnly && freshness == reads.Change || !readOnly && !internal && freshness != reads.Change {
					t.Errorf("%s is in the table for %s, and the proto says otherwise", procedure, freshness)
				}
			}
		}
	}
	if f, ok := reads.FreshnessOf("/wiggle.v1.InstanceService/Unknown"); ok {
		t.Errorf("a procedure that is not there is a %s", f)
	}
}
