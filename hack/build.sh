#!/usr/bin/env bash
# Builds bin/workcell; the version is that of the checkout, if it is one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_go
cd "$root"
version=$(git describe --tags --always --dirty 2>/dev/null) || version=
CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$version" -o bin/workcell ./cmd/workcell
say "bin/workcell ${version:-(no version: not a checkout)}"
