package containerd

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// osName gives the name of this machine's operating system, as it calls itself.
func osName() string {
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return "linux"
	}
	defer f.Close() //nolint:errcheck // only read from
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if v, ok := strings.CutPrefix(sc.Text(), "PRETTY_NAME="); ok {
			if s, err := strconv.Unquote(v); err == nil {
				return s
			}
			return v
		}
	}
	return "linux"
}
