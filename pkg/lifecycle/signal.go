package lifecycle

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal os.Signal }

// Error names the signal.
func (e *SignalError) Error() string { return fmt.Sprintf("received %v", e.Signal) }

// signalExit is what shells add the number of a signal to for the exit code.
const signalExit = 128

// WithSignals returns a context that the first SIGINT or SIGTERM ends, with a [SignalError] as cause. A second one exits
// the process at once with code 128 plus its number, for those who do not want to wait for the grace period. stop
// gives the signals back and ends the context.
func WithSignals(ctx context.Context) (_ context.Context, stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	ctx, stopWatching := watchSignals(ctx, signals, os.Exit)
	return ctx, func() {
		signal.Stop(signals)
		stopWatching()
	}
}

// watchSignals is WithSignals with its surroundings given.
func watchSignals(ctx context.Context, signals <-chan os.Signal, exit func(int)) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for received := 0; ; received++ {
			select {
			case <-stopped:
				return
			case sig := <-signals:
				if received > 0 {
					code := 1
					if s, ok := sig.(syscall.Signal); ok {
						code = signalExit + int(s)
					}
					exit(code)
					return
				}
				cancel(&SignalError{Signal: sig})
			}
		}
	}()
	return ctx, func() {
		cancel(ErrStopped)
		close(stopped)
		<-done
	}
}
