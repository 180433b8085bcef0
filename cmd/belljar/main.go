// Command belljar is the command line of Belljar, and its daemon.
package main

import (
	"context"
	"os"
	"time"

	"github.com/belljar-sh/belljar/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), time.Now(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
