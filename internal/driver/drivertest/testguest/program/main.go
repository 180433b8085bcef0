// Command program is the test guest as a program: PID 1 of a sandbox, with the
// channels at descriptors 3 and 4.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/belljar-sh/belljar/internal/driver/drivertest/testguest"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == testguest.SleepArg {
		for {
			time.Sleep(time.Hour)
		}
	}
	if len(os.Args) > 1 && os.Args[1] == testguest.ExitArg {
		return
	}
	down, err := conn(3)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	up, err := conn(4)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(testguest.Run(context.Background(), down, up))
}

func conn(fd uintptr) (net.Conn, error) {
	f := os.NewFile(fd, "channel")
	defer f.Close()
	return net.FileConn(f)
}
