//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "workcell-guest: runs on Linux only")
	os.Exit(1)
}
