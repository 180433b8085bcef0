// Command hello is a Go program of about 3 MB that prints a line: what the
// start of `belljar version` is compared with.
package main

import (
	"encoding/json"
	"flag"
	"os"
)

func main() {
	name := flag.String("name", "world", "whom to greet")
	flag.Parse()
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{"hello": *name}); err != nil {
		os.Exit(1)
	}
}
