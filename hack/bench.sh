#!/usr/bin/env bash
# Measures; prints a table and writes e2e/bench/out/latest.json.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_go
use_docker_context
cd "$root"
exec go run ./e2e/bench "$@"
