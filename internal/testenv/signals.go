package testenv

import (
	"os"
	"os/signal"
	"syscall"
)

// CatchSignals has this process catch the signals that it was started to
// ignore, as under nohup or in the background of a shell. What is ignored here
// would be in every program that a test starts; what is caught is not. A
// TestMain calls it first.
func CatchSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}
