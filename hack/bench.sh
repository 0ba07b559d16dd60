#!/usr/bin/env bash
# Measures; prints tables and writes e2e/bench/out/latest.json. Without arguments everything, also what needs the test
# cluster and PostgreSQL, which it starts where they do not run.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_go
use_docker_context
cd "$root"
if ! command -v mkfs.xfs >/dev/null; then need_packages "the snapshots on XFS" xfsprogs; fi
if [ $# -gt 0 ]; then exec go run ./e2e/bench "$@"; fi
go run ./e2e/bench
hack/cluster.sh up
go run ./e2e/bench cluster
go run ./e2e/bench -postgres "$(hack/postgres.sh start | tail -n 1)" state
