#!/usr/bin/env bash
# slot.sh FIFO COMMAND...: runs a command when the FIFO has a place for it, a line, and puts the line back.
set -euo pipefail
exec 9<>"$1"
read -r -u 9
trap 'echo >&9' EXIT
# Of `nice go test` the tests themselves are not meant.
renice -n 0 -p $$ >/dev/null 2>&1 || true # what only root may
"${@:2}" 9>&-
