#!/bin/sh
# Generates the embedded tables of system call numbers. It reads the numbers from x/sys.
set -eu
dir=$(go list -m -f '{{.Dir}}' golang.org/x/sys)/unix
for arch in amd64 386 arm64 arm; do
	sed -nE 's/^\s+SYS_([A-Z0-9_]+)\s+= ([0-9]+)$/\L\1 \2/p' "$dir/zsysnum_linux_$arch.go" |
		grep -vE '^(syscall_mask|arch_specific_syscall) ' >"numbers_$arch.txt"
done
# x/sys lacks the system calls specific to ARM.
printf '%s\n' 'breakpoint 983041' 'cacheflush 983042' 'set_tls 983045' >>numbers_arm.txt
