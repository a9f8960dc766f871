package replica

import (
	"testing"

	"github.com/wiggle-run/wiggle/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
