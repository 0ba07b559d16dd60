#!/usr/bin/env bash
# Builds the library and the command for the other systems and architectures,
# and vets all of the tree for the other systems, tests and development's own
# programs included: a test of Linux alone must say so.
# What is built is thrown away, so the compiler need not optimise it: that takes
# a third off.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

main() {
  local target start flags=(-gcflags='all=-N -l -dwarf=false') # vet with others would compile everything again
  need_go
  cd "$root"
  export CGO_ENABLED=0
  for target in darwin/arm64 linux/arm64 windows/amd64; do
    export GOOS=${target%/*} GOARCH=${target#*/}
    start=$SECONDS
    # Development's own programs are for the machine they are used on.
    go list -f '{{if .GoFiles}}{{.ImportPath}}{{end}}' ./... | grep -vE '/(bench|e2e|hack|images)(/|$)' |
      xargs go build "${flags[@]}" -ldflags='-s -w' ||
      die "$target does not build"
    if [ "$GOOS" != linux ]; then go vet "${flags[@]}" ./... || die "$GOOS: go vet found something"; fi
    say "$target: ok ($((SECONDS - start)) s)"
  done
}

supervise main
