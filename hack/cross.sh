#!/usr/bin/env bash
# Builds the library and the command for the other systems and architectures.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_go
cd "$root"
for target in darwin/arm64 linux/arm64 windows/amd64; do
  start=$SECONDS
  CGO_ENABLED=0 GOOS=${target%/*} GOARCH=${target#*/} go build ./... || die "$target does not build"
  CGO_ENABLED=0 GOOS=${target%/*} GOARCH=${target#*/} go build -o /dev/null ./cmd/workcell ||
    die "$target: the command does not link"
  say "$target builds ($((SECONDS - start)) s)"
done
