#!/usr/bin/env bash
# Builds the library and the command for the other systems and architectures.
# What comes out is thrown away, so the compiler need not optimise it: that
# takes a third off.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_go
cd "$root"
export CGO_ENABLED=0
for target in darwin/arm64 linux/arm64 windows/amd64; do
  export GOOS=${target%/*} GOARCH=${target#*/}
  start=$SECONDS
  # Development's own programs are for the machine they are used on.
  go list -f '{{if .GoFiles}}{{.ImportPath}}{{end}}' ./... | grep -vE '/(bench|e2e|hack|images)(/|$)' |
    xargs go build -gcflags='all=-N -l -dwarf=false' -ldflags='-s -w' ||
    die "$target does not build"
  say "$target builds ($((SECONDS - start)) s)"
done
