package guard_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	wigglev1 "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1"
	wc "github.com/wiggle-run/wiggle/proto/gen/wiggle/v1/wigglev1connect"
	wiggleinternalv1 "github.com/wiggle-run/wiggle/proto/gen/wiggleinternal/v1"
	"github.com/wiggle-run/wiggle/services/router/internal/principals"
)

// AUT-5: a call that waits ends when its caller's credential does, and goes on when another's does.
func TestRevokedWhileItWaits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(t *testing.T, f *fixture)
		code   string // empty: it goes on
	}{
		{"revoked", func(_ *testing.T, f *fixture) { f.known.revoke(keyOf("caller")) }, "unauthenticated"},
		{"another scope", func(t *testing.T, f *fixture) {
			f.known.set(t, keyOf("caller"), "caller", "instance.read:shop/*")
		}, "unavailable"},
		{"another role that changes nothing here", func(t *testing.T, f *fixture) {
			f.known.set(t, keyOf("caller"), "caller", "instance.read:orders/*", "task.poll")
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := start(t)
				done := make(chan answer, 1)
				go func() {
					done <- f.with(t, wc.InstanceServiceWaitInstanceProcedure, &wigglev1.WaitInstanceRequest{InstanceId: "orders/refund"},
						"instance.read:orders/*")
				}()
				<-f.behind.waits
				c.change(t, f)
				f.guard.Changed(changeOf("another"))
				synctest.Wait()
				select {
				case got := <-done:
					t.Fatalf("another's change ended it: %+v", got)
				default:
				}
				f.guard.Changed(changeOf("caller"))
				synctest.Wait()
				select {
				case got := <-done:
					if got.code != c.code {
						t.Errorf("it ended with %+v", got)
					}
				default:
					if c.code != "" {
						t.Error("it goes on")
					}
					f.known.revoke(keyOf("caller"))
					time.Sleep(2 * time.Minute) // everybody is looked at now and then, also without word of a change
					if got := <-done; got.code != "unauthenticated" || !strings.Contains(got.text, "unknown") {
						t.Errorf("it ended with %+v", got)
					}
				}
			})
		})
	}
}

func changeOf(credential string) principals.Change {
	return principals.NewChange(&wiggleinternalv1.ListChangesResponse{Revision: 1, CredentialIds: []string{credential}})
}
