// Command drawer draws, each time that it reads a line, from generators that a
// Go program has in its own memory, and prints what they give.
package main

import (
	"bufio"
	crand "crypto/rand"
	"fmt"
	"math/rand"
	randv2 "math/rand/v2"
	"os"
)

func main() {
	own := rand.New(rand.NewSource(rand.Int63()))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var b [8]byte
		crand.Read(b[:])
		fmt.Printf("Go math/rand\t%d\n", rand.Int63())
		fmt.Printf("Go math/rand/v2\t%d\n", randv2.Int64())
		fmt.Printf("Go rand.New\t%d\n", own.Int63())
		fmt.Printf("Go crypto/rand\t%x\n", b)
		fmt.Println("end\t")
	}
}
