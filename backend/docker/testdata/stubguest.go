// Stubguest stands in for the guest: it runs, and can do none of the things that the guest is asked for by arguments.
package main

import (
	"os"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		os.Exit(7)
	}
	time.Sleep(time.Hour)
}
