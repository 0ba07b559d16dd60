#!/usr/bin/env bash
# Measures; prints tables and writes e2e/bench/out/latest.json. Without arguments it runs everything. It starts the
# test cluster for this, and stops it again, unless it runs already.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

main() {
  need_go
  use_docker_context
  cd "$root"
  if ! command -v mkfs.xfs >/dev/null; then need_packages "the snapshots on XFS" xfsprogs; fi
  if [ $# -gt 0 ]; then
    go run ./e2e/bench "$@"
    return
  fi
  say "=== engines"
  go run ./e2e/bench
  say "=== the page"
  go test -run '^$' -bench BenchmarkPage -benchtime 1x ./e2e/ui
  say "=== Kubernetes"
  hack/cluster.sh status >/dev/null 2>&1 || at_exit 'hack/cluster.sh down'
  hack/cluster.sh up
  go run ./e2e/bench cluster
}

supervise main "$@"
