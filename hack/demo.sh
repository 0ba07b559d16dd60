#!/usr/bin/env bash
# Three agents find and fix a bug in one sandbox, traced in Jaeger, with a
# scripted model in place of a vendor's. Sets up whatever is missing.
#
# MODEL=googleai/gemini-2.5-flash make demo   lets a real model do it, with the
# vendor's key in the environment.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

workflow=examples/workflows/debug-and-fix.yaml
script=examples/workflows/scripts/debug-and-fix.yaml
jaeger_log=$(mktemp)
jaeger_pid=

finish() {
  if [ -n "$jaeger_pid" ]; then kill -- "-$jaeger_pid" 2>/dev/null || true; fi
  rm -f "$jaeger_log"
}
trap finish EXIT

need_go
cd "$root"

# The longest part of a first run, beside the others; a process group of its
# own, so that an interrupt ends all of it.
set -m
nice hack/jaeger.sh path >"$jaeger_log" 2>&1 </dev/null &
jaeger_pid=$!
set +m

say "== engine"
hack/engine.sh
use_docker_context
say "== images"
hack/images.sh -official
say "== workcell"
hack/build.sh
say "== Jaeger (the first time it is built from its Go module, which takes about four minutes)"
if ! wait "$jaeger_pid"; then
  jaeger_pid=
  cat "$jaeger_log" >&2
  die "Jaeger could not be built"
fi
jaeger_pid=
hack/jaeger.sh start

model=${MODEL:-scripted/$script}
say "== $workflow with $model"
case $model in
  scripted/*) say "   (a recorded list of turns plays the model; the sandbox, its files and the commands are real)" ;;
esac
since=$(date +%s)
code=0
OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf \
  bin/workcell run "$workflow" --model "$model" || code=$?

say "== the run as Jaeger has it"
go run ./hack/spantree -since "$since"
say "(Jaeger keeps running; hack/jaeger.sh stop ends it. Built from its module it has the query API but not the"
say "pages; a published Jaeger on the same ports shows both.)"
exit $code
