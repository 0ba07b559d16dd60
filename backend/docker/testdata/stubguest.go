// Stubguest is a test guest agent without commands.
package main

import (
	"os"
	"strings"
	"time"
)

func main() {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(7)
	}
	time.Sleep(time.Hour)
}
