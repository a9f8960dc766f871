package machine

import (
	_ "context"
	_ "os"
	"testing"
	"time"
)

func TestStep(t *testing.T) { Step(time.Now()) }
