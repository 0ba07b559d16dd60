//go:build ignore

// Mknumbers generates the embedded tables of system call numbers for package seccomp. It reads the numbers from x/sys.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// extra lists system calls specific to ARM and missing from x/sys.
var extra = map[string]string{
	"arm": "breakpoint 983041\ncacheflush 983042\nset_tls 983045\n",
}

var call = regexp.MustCompile(`(?m)^\s+SYS_([A-Z0-9_]+)\s+= (\d+)$`)

// notCalls lists constants with the prefix SYS_ other than system calls.
var notCalls = map[string]bool{"SYSCALL_MASK": true, "ARCH_SPECIFIC_SYSCALL": true}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mknumbers:", err)
		os.Exit(1)
	}
}

func run() error {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		return err
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "unix")
	for _, arch := range []string{"amd64", "386", "arm64", "arm"} {
		src, err := os.ReadFile(filepath.Join(dir, "zsysnum_linux_"+arch+".go"))
		if err != nil {
			return err
		}
		var b bytes.Buffer
		for _, m := range call.FindAllSubmatch(src, -1) {
			if !notCalls[string(m[1])] {
				fmt.Fprintf(&b, "%s %s\n", bytes.ToLower(m[1]), m[2])
			}
		}
		b.WriteString(extra[arch])
		if err := os.WriteFile("numbers_"+arch+".txt", b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
