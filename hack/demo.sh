#!/usr/bin/env bash
# Three agents with a recorded model find and fix a bug in one sandbox. The demo prints the trace of the run and sends it to
# Jaeger. It installs missing programs. Jaeger does not delay the run.
#
#   make demo                      use the available engine, or the local backend if no engine is available
#   BACKEND=docker make demo       (or containerd) install and start this engine if it is missing
#   MODEL=googleai/gemini-2.5-flash make demo   use a real model, with the provider's key in the environment
#   JAEGER=off make demo           only print the trace
#   make demo-cli                  use a CLI coding agent with a mock model; for Gemini, set MODEL=googleai/… and GEMINI_API_KEY
#   make demo-code                 an agent's program calls tools of the host, twenty times and once with a question
#   demo.sh tags                   prints the build tags of make demo
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case ${DEMO:-fix} in
  fix)
    what=(run examples/workflows/debug-and-fix.yaml)
    script=examples/workflows/scripts/debug-and-fix.yaml
    ;;
  code)
    what=(agent run examples/agents/order-desk.prompt --host-tools examples/host-tools.yaml
      'What do the orders 1 to 20 come to? Pay 30 euros of the largest back.')
    script=examples/agents/scripts/order-desk.yaml
    JAEGER=${JAEGER:-off}
    ;;
  cli)
    what=(run examples/workflows/cli-debug-and-fix.yaml)
    script=examples/workflows/scripts/cli-debug-and-fix.json # of a model that the coding agent asks over HTTP
    JAEGER=${JAEGER:-off}
    ;;
  *) printf 'DEMO is fix, code or cli\n' >&2 && exit 2 ;;
esac
model=${MODEL:-scripted/$script}
jaeger=(hack/service.sh jaeger)
run= # pid of the run
work=$(mktemp -d)
export GOTMPDIR=$work # an interrupted compiler leaves files

# finish ends the jobs of this demo. Ctrl-C has reached the run, too, and a second signal would keep it from removing its sandbox.
finish() {
  local code=$? job try
  trap '' INT TERM HUP
  for try in {1..100}; do
    for job in $(jobs -rp); do
      if [[ $try = 50 || ($try = 1 && "$code $job" != "130 $run") ]]; then kill -- "-$job" 2>/dev/null || kill "$job" || true; fi
    done
    [ -n "$(jobs -rp)" ] || break
    sleep 0.1
  done
  rm -rf "$work"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

main() {
  need_go
  cd "$root"
  lock "$cache/demo.lock" -n || die "another demo of yours runs" "wait for its end"
  use_docker_context
  choose_backend
  local images=(-official) flags=(--backend "$backend" --model "$model") code=0
  if [ "${DEMO:-}" = cli ]; then
    [ "$backend" != local ] || die "the coding agent is in an image" "BACKEND=docker make demo-cli"
    images=(-agents -only gemini)
  fi
  begin build compile
  if [ "$backend" = local ]; then
    begin setup need_system_python
    await setup "Python"
  else
    begin setup hack/engine.sh "$backend"
    await setup "$backend"
    await build "the program that makes the images" "$work/mkimages"
    begin images "$work/mkimages" "${images[@]}" -cache "$cache/images" -engine "$backend" -address "$containerd_socket"
    await images "images"
  fi
  await build "workcell"
  say "== ${what[*]} on $backend with $model"
  case ${DEMO:-}/$model in
    cli/scripted/*)
      say "   (mock model with scripted answers; the coding agent, the sandbox, and the project are real)"
      begin mock "$work/mockmodel" --script "$script"
      await mock "the model" "$work/mock.log"
      GOOGLE_GEMINI_BASE_URL=$(head -n 1 "$work/mock.log")
      export GOOGLE_GEMINI_BASE_URL GEMINI_API_KEY=none
      flags=(--backend "$backend")
      ;;
    */scripted/*) say "   (recorded model; the sandbox, the files, and the commands are real)" ;;
  esac
  # A foreground command would delay a signal to this script, and a background command ignores Ctrl-C.
  (trap - INT QUIT && exec "$work/workcell" "${what[@]}" "${flags[@]}") <&0 8>&- &
  run=$!
  wait $run || code=$?
  say "== the trace, $SECONDS s after the start"
  if "$work/workcell" runs trace && [ "${JAEGER:-}" != off ]; then
    hand_to_jaeger || say "(Cannot send the trace to Jaeger. To try again, run make demo.)"
  fi
  exit $code
}

# choose_backend sets backend.
choose_backend() {
  backend=${BACKEND:-auto}
  case $backend in
    docker | containerd | local) ;;
    auto)
      if engine_answers; then
        backend=docker
      elif containerd_answers "$containerd_socket"; then
        backend=containerd
      elif [ "$(uname -s)" = Linux ]; then
        backend=local
        say "no container engine is available (on Debian, BACKEND=docker make demo installs Docker)"
      else
        die "no container engine is available" "start Docker (for example Docker Desktop or Colima)"
      fi
      ;;
    *) die "unknown backend: BACKEND=$backend" "use docker, containerd, local, or auto" ;;
  esac
  if [ "$backend" = local ]; then
    say "using the local backend: the sandbox runs this host's programs in Linux namespaces, with a system call filter and"
    say "without privileges. It isolates less than a container: see docs/operations/local.md."
  else
    say "using a container of $backend as the sandbox"
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
    die "python3 not found in /usr/bin; the example is a Python project" "install your system's python3 package"
  fi
}

# compile builds what the demo needs of the command. The demo has no use for optimized code and debug information, which take
# a third of the compiler's time.
compile() {
  local flags=(-trimpath -tags "$(demo_tags)" -gcflags "all=-N -l -dwarf=false" -ldflags "-s -w") packages=(./cmd/workcell) standard
  if [ "$backend" != local ]; then packages=(./e2e/images/cmd/mkimages ./cmd/workcell); fi
  if [ "${DEMO:-}" = cli ]; then packages+=(./examples/mockmodel); fi
  export CGO_ENABLED=0
  # The standard library needs no module, so that the compiler works while modules are downloaded.
  go build -v "${flags[@]}" archive/tar archive/zip database/sql encoding/gob encoding/xml go/doc html image/png net/http/httputil text/template &
  standard=$!
  go list -deps "${flags[@]:0:3}" modernc.org/sqlite "${packages[@]}" | wc -l >"$work/packages"
  wait $standard
  # SQLite is by far the largest package, so that it comes first.
  go build -v "${flags[@]}" -o "$work/" modernc.org/sqlite "${packages[@]}"
}

demo_tags() {
  local tags=(no_kubernetes no_otlp no_postgres)
  case ${DEMO:-}/$model in
    cli/*) ;;
    */scripted/*) tags+=(no_models) ;;
  esac
  if [ "$backend" != docker ]; then tags+=(no_docker); fi
  if [ "$backend" != containerd ]; then tags+=(no_containerd); fi
  local IFS=,
  printf '%s\n' "${tags[*]}"
}

# begin NAME COMMAND...: starts a command in the background, in a process group of its own, so that all of it can be ended.
begin() {
  local name=$1
  shift
  set -m
  "$@" >"$work/$name.log" 2>&1 </dev/null 8>&- &
  printf -v "pid_$name" %s $!
  set +m
}

# await NAME WHAT [FILE]: waits for a command of begin, or until it has written a file, and prints every five seconds how far it
# is.
await() {
  local pid=pid_$1 log=$work/$1.log shown=$SECONDS
  while kill -0 "${!pid}" 2>/dev/null && [ ! -s "${3:-/nothing}" ]; do
    sleep 0.2
    if [ $((SECONDS - shown)) -lt 5 ]; then continue; fi
    shown=$SECONDS
    if [ "$1" = build ] && [ -s "$work/packages" ]; then
      say "   $SECONDS s, $2: compiled $(grep -c '^[^ ]*$' "$log") of $(cat "$work/packages") packages"
    else
      say "   $SECONDS s, $2: $(tail -n 1 "$log" | cut -c 1-75)"
    fi
  done
  [ ! -s "${3:-/nothing}" ] || return 0
  if ! wait "${!pid}"; then
    cat "$log" >&2
    say "error: $2 failed, $SECONDS s after the start"
    return 1
  fi
  say "== $2: ready, $SECONDS s after the start"
}

# hand_to_jaeger sends Jaeger the kept trace. A Jaeger that answers is used.
hand_to_jaeger() {
  "$work/workcell" runs trace -o json >"$work/trace.json" || return
  if ! "${jaeger[@]}" status >/dev/null 2>&1; then
    say "Downloading or building Jaeger. The first time, this takes a few minutes. The run is finished and its trace is saved, so you can press Ctrl-C."
    begin jaeger nice -n 19 "${jaeger[@]}" up
    await jaeger "Jaeger" || return
  fi
  "${jaeger[@]}" send "$work/trace.json" || return
  say "(Jaeger keeps running. To stop it, run ${jaeger[*]} stop. If Jaeger was built from source, it has no web pages: to get"
  say "the trace as JSON, replace /trace/ with /api/traces/ in the address.)"
}

case ${1:-} in
  "") main ;;
  tags) backend=${BACKEND:-local} && demo_tags ;;
  *) die "usage: demo.sh [tags]" ;;
esac
