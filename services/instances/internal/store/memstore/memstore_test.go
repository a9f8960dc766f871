package memstore_test

import (
	"testing"

	"github.com/wiggle-run/wiggle/services/instances/internal/store"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/memstore"
	"github.com/wiggle-run/wiggle/services/instances/internal/store/storetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) store.Store { return memstore.New(nil) })
}
