#!/usr/bin/env bash
# Makes docs/ui-*.png: the page with runs of the examples on the local backend, with recorded answers.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

demo=/tmp/demo # seen in the pictures

main() {
  local browser modules node id link=""
  cd "$root"
  need_go
  browser=$(hack/tool.sh chromium) modules=$(hack/tool.sh npm)/node_modules node=$(hack/tool.sh node)
  mkdir "$demo"
  at_exit 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$demo"'
  go build -trimpath -o "$demo/workcell" ./cmd/workcell
  cp -r examples/. "$demo"
  cp e2e/ui/testdata/{release,watch}.yaml "$demo/workflows"
  cp -r examples/workflows/projects/buggy-calculator "$demo/calculator"
  export WORKCELL_STATE_DIR=$demo/state WORKCELL_BACKEND=local WORKCELL_REAPER=off HOME=$demo TZ=UTC
  cd "$demo/workflows"
  go_run polyglot-checks polyglot-checks
  go_run debug-and-fix debug-and-fix --workspace "$demo/calculator"
  go_run release debug-and-fix
  "$demo/workcell" run watch.yaml >/dev/null 2>&1 &
  sleep 1
  kill -9 $!
  wait $! 2>/dev/null || true
  go_run polyglot-checks polyglot-checks
  "$demo/workcell" run watch.yaml >/dev/null 2>&1 &
  "$demo/workcell" ui --no-open --listen 127.0.0.1:0 >"$demo/link" 2>/dev/null &
  until [ -s "$demo/link" ]; do sleep 0.1; done
  for id in debug-and-fix nightly-release; do
    id=$("$demo/workcell" runs ls --workflow "$id" -n 1 -o json | sed -n 's/.*"id": "\(.*\)".*/\1/p')
    link+=" $id"
  done
  # shellcheck disable=SC2086 # two words
  PAGE_MODULES=$modules PAGE_BROWSER=$browser "$node" "$root/e2e/ui/pictures.mjs" "$(cat "$demo/link")" "$root/docs" $link
  "$demo/workcell" sandbox ls -o json | sed -n 's/.*"id": "\(sbx_.*\)".*/\1/p' | xargs -r "$demo/workcell" sandbox rm >/dev/null
  say "docs/ui-runs.png, docs/ui-run.png, docs/ui-changes.png: $(cd "$root/docs" && du -ch ui-*.png | tail -n 1)"
}

# go_run WORKFLOW ANSWERS ARGUMENT...: some of these runs fail.
go_run() { "$demo/workcell" run "$1.yaml" --model "scripted/scripts/$2.yaml" "${@:3}" >/dev/null 2>&1 || true; }

supervise main "$@"
