#!/usr/bin/env bash
# Three agents find and fix a bug in one sandbox, traced in Jaeger, with a
# scripted model in place of a vendor's. Sets up whatever is missing.
#
#   make demo                      on the engine that answers; where none does, on the local backend, which needs none
#   BACKEND=docker make demo       (or containerd) installs and starts that engine where it is missing
#   MODEL=googleai/gemini-2.5-flash make demo   lets a real model do it, with the vendor's key in the environment
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

# choose_backend sets backend, and makes it ready.
choose_backend() {
  backend=${BACKEND:-auto}
  case $backend in
    docker | containerd) hack/engine.sh "$backend" ;;
    local) ;;
    auto)
      if engine_answers; then
        backend=docker
      elif containerd_answers; then
        backend=containerd
      elif [ "$(uname -s)" = Linux ]; then
        backend=local
        say "no container engine answers (BACKEND=docker make demo installs one on Debian)"
      else
        die "no container engine answers" "start Docker (Docker Desktop, Colima)"
      fi
      ;;
    *) die "BACKEND=$backend is not known" "docker, containerd, local or auto" ;;
  esac
  if [ "$backend" = local ]; then
    say "the sandbox is made of this machine's own programs, read-only, in namespaces of its own, with a system call"
    say "filter and without privileges. That is no container: the wall is thinner. See docs/local.md."
    need_system_python
  else
    say "the sandbox is a container of $backend"
  fi
}

# need_system_python: the local backend shows sandboxes what lies in the
# system's own folders, and the example is a Python project.
need_system_python() {
  local dir
  for dir in /usr/local/bin /usr/bin /bin; do
    if [ -x "$dir/python3" ]; then return; fi
  done
  if is_debian && [ "$(id -u)" = 0 ]; then
    need_packages "the example project" python3
  else
    die "the example is a Python project, and there is no python3 in /usr/bin" "install your system's python3 package"
  fi
}

need_go
cd "$root"

# The longest part of a first run, beside the others; a process group of its
# own, so that an interrupt ends all of it.
set -m
nice hack/jaeger.sh path >"$jaeger_log" 2>&1 </dev/null &
jaeger_pid=$!
set +m

say "== engine"
use_docker_context
choose_backend
if [ "$backend" != local ]; then
  say "== images"
  ENGINES=$backend hack/images.sh -official
fi
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
say "== $workflow on $backend with $model"
case $model in
  scripted/*) say "   (a recorded list of turns plays the model; the sandbox, its files and the commands are real)" ;;
esac
since=$(date +%s)
code=0
OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf \
  bin/workcell run "$workflow" --backend "$backend" --model "$model" || code=$?

say "== the run as Jaeger has it"
go run ./hack/spantree -since "$since"
say "(Jaeger keeps running; hack/jaeger.sh stop ends it. Built from its module it has the query API but not the"
say "pages; a published Jaeger on the same ports shows both.)"
exit $code
