#!/bin/bash
# Draws docs/trace.svg, the picture in README.md: the trace of a real run of the example, on the backend that needs no
# engine, with recorded answers.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
state=$(mktemp -d)
trap 'rm -rf "$state"' EXIT
export WORKCELL_STATE_DIR=$state WORKCELL_REAPER=off
go build -trimpath -o "$state/workcell" ./cmd/workcell
run=$("$state/workcell" run examples/workflows/debug-and-fix.yaml --backend local -o json \
  --model scripted/examples/workflows/scripts/debug-and-fix.yaml | sed -n 's/.*"run_id": "\(run_[a-z2-7]*\)".*/\1/p')
"$state/workcell" runs trace "$run" -o svg >"$state/trace.svg"
mv "$state/trace.svg" docs/trace.svg
chmod 644 docs/trace.svg
echo "docs/trace.svg is the trace of $run"
