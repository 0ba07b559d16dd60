#!/usr/bin/env bash
# The fault tests for SOAK (default 10m), instead of the minute that `make test`
# gives them, and then workers that are killed under runs. The first end with a
# table: fault, engine, injected, lost, left.
#
#   SOAK=1h hack/soak.sh [NAME]   NAME: a test, or a pattern of them; TestKilledWorkers is that of workers
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_go
cd "$root"
hack/engine.sh docker containerd
use_docker_context
PATH=$(dirname "$(working_docker)"):$PATH # for the tests too
ENGINES=docker,containerd hack/images.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if is_debian && ! command -v ip >/dev/null; then need_packages "networks of the workers' tests" iproute2; fi
go test -race -c -o "$scratch/" ./e2e/faults ./e2e/workers
# Where `go test` would run it. Everything at once: faults meet each other, too.
cd "$root/e2e/faults"
TMPDIR=$scratch FAULTS_SOAK=${SOAK:-10m} "$scratch/faults.test" -test.run "${1:-.}" -test.timeout 0 -test.parallel 16 -test.v |
  grep -v '^ *=== '
cd "$root/e2e/workers"
TMPDIR=$scratch WORKERS_SOAK=${SOAK:-10m} "$scratch/workers.test" -test.run "${1:-TestKilledWorkers}" -test.timeout 0 -test.v | grep -v '^ *=== '
