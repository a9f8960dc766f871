// Package storetest is the suite that every [store.Store] passes: what a store
// must do, said once, so that the one in memory stays true to the one in
// PostgreSQL. The machine makes the changes that are written, over small
// definitions.
//
// A store's clock is its own, so the suite waits for nothing: leases that are over
// are made with no length, timers that are due are asked for ahead of their time.
package storetest

import (
	"testing"

	"github.com/wiggle-run/wiggle/services/instances/internal/store"
)

// Run runs the suite. open makes an empty store for one test.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	t.Helper()
	for name, test := range map[string]func(*shard){
		"chain":                       testChain,
		"a batch sees itself":         testBatchSeesItself,
		"apply fails":                 testApplyFails,
		"empty batch":                 testEmptyBatch,
		"start raced":                 testStartRaced,
		"started again":               testStartedAgain,
		"start that ends at once":     testStartEnds,
		"cancel keeps context":        testCancelKeepsContext,
		"failure keeps context":       testFailureKeepsContext,
		"siblings arrive together":    testSiblings,
		"combine":                     testCombine,
		"fan-out after combine":       testFanOutAgain,
		"let in":                      testLetIn,
		"ten thousand children":       testManyChildren,
		"latest":                      testLatest,
		"batched steps":               testBatchedSteps,
		"settled leases":              testSettled,
		"settled by failure":          testSettledByFailure,
		"unknown keys":                testUnknownKeys,
		"payloads":                    testPayloads,
		"every field":                 testEveryField,
		"advance":                     testAdvance,
		"advance is guarded":          testAdvanceGuarded,
		"advance keeps what it may":   testAdvanceFields,
		"events":                      testEvents,
		"events of ends":              testEventsOfEnds,
		"events or nothing":           testEventsOrNothing,
		"events of batched steps":     testEventsBatched,
		"events of one batch":         testEventsOfOneBatch,
		"event pages":                 testEventPages,
		"event consumers":             testEventConsumers,
		"events are trimmed":          testTrimEvents,
		"claim order":                 testClaimOrder,
		"claim over queues":           testClaimQueues,
		"claim bindings":              testClaimBindings,
		"claim bytes":                 testClaimBytes,
		"claim lease":                 testClaimLease,
		"claim nothing":               testClaimNothing,
		"claim each once":             testClaimConcurrently,
		"claim carries instance":      testClaimCarries,
		"beat":                        testBeat,
		"beat capped":                 testBeatCapped,
		"tick lease":                  testTickLease,
		"tick tells":                  testTickTells,
		"backlog":                     testBacklog,
		"due":                         testDue,
		"expired":                     testExpired,
		"retry becomes due":           testRetryDue,
		"instance":                    testInstance,
		"instances by id":             testInstances,
		"instances by id, in bytes":   testInstancesBytes,
		"scan":                        testScan,
		"ended":                       testEnded,
		"history pages":               testHistoryPages,
		"list pages":                  testListPages,
		"list filters":                testListFilters,
		"count":                       testCount,
		"lists of some workflows":     testOnly,
		"subjects of instances":       testInstanceSubjects,
		"steps of tasks":              testTaskSteps,
		"register":                    testRegister,
		"register concurrently":       testRegisterConcurrently,
		"put definitions":             testPutDefinitions,
		"list definitions":            testListDefinitions,
		"cancelled context":           testCancelledContext,
		"register while an update is": testDefinitionsInApply,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(&shard{T: t, Store: open(t)})
		})
	}
}
