#!/usr/bin/env bash
# Prints how large each package is beside its bounds (hack/house/bounds.txt), then runs golangci-lint.
# usage: lint.sh [ARGUMENT...]   (default: run)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

main() {
  need_go
  cd "$root"
  if [ $# -eq 0 ]; then
    go run ./hack/house . hack/house/bounds.txt
    set -- run
  fi
  "$(hack/tool.sh golangci-lint)" "$@"
}

supervise main "$@"
