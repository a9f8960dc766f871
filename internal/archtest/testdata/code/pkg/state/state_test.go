package state

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSleep(t *testing.T) {
	time.Sleep(time.Millisecond)
	synctest.Test(t, func(t *testing.T) { time.Sleep(time.Hour) })
	later := time.Sleep
	_ = later
}

func inBubble(t *testing.T, run func()) { synctest.Test(t, func(*testing.T) { run() }) }

func TestBubble(t *testing.T) {
	inBubble(t, func() { time.Sleep(time.Hour) })
	t.Run("outside", func(*testing.T) { time.Sleep(1) })
}

func pass() {
	time.Sleep(time.Hour)
	synctest.Wait()
}

func TestWaits(t *testing.T) {
	inBubble(t, func() { synctest.Wait() })
	time.Sleep(1)
}
