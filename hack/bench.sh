#!/usr/bin/env bash
# Measures; prints tables and writes e2e/bench/out/latest.json. Without arguments everything, also what needs the test
# cluster and PostgreSQL, which it starts where they do not run, and then ends.
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
  say "=== Kubernetes"
  hack/cluster.sh status >/dev/null 2>&1 || at_exit 'hack/cluster.sh down'
  hack/cluster.sh up
  go run ./e2e/bench cluster
  say "=== PostgreSQL"
  hack/service.sh postgres status >/dev/null 2>&1 || at_exit 'hack/service.sh postgres stop'
  go run ./e2e/bench -postgres "$(hack/service.sh postgres start | tail -n 1)" state
}

supervise main "$@"
