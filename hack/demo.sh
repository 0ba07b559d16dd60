#!/usr/bin/env bash
# Three agents find and fix a bug in one sandbox, with a scripted model in place
# of a vendor's; then the trace of their run is drawn, and Jaeger gets it. Sets
# up whatever is missing. Nothing before the trace waits for Jaeger.
#
#   make demo                      on the engine that answers; where none does, on the local backend, which needs none
#   BACKEND=docker make demo       (or containerd) installs and starts that engine where it is missing
#   MODEL=googleai/gemini-2.5-flash make demo   lets a real model do it, with the vendor's key in the environment
#   JAEGER=off make demo           ends with the trace in the terminal
#   make demo-cli                  a CLI coding agent does it, with a model of the demo's; MODEL=googleai/… and GEMINI_API_KEY for Google's
#   make demo-code                 an agent's program calls tools of the host, twenty times and once with a question
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
began=$SECONDS
work=$(mktemp -d)
export GOTMPDIR=$work # what an interrupted compiler leaves goes with it

# finish ends the jobs of this demo that still run.
finish() {
  local j
  for j in $(jobs -rp); do kill -- "-$j" 2>/dev/null || true; done
  for _ in $(seq 50); do
    [ -n "$(jobs -rp)" ] || break
    sleep 0.1
  done
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

main() {
  need_go
  cd "$root"
  lock "$cache/demo.lock" -n || die "another demo of yours runs" "wait for its end"
  use_docker_context
  choose_backend
  local images=(-official)
  if [ "${DEMO:-}" = cli ]; then
    [ "$backend" != local ] || die "the coding agent lies in an image" "BACKEND=docker make demo-cli"
    images=(-agents -only gemini)
  fi
  # The longest part of a first run, beside those that wait for the network.
  begin build compile
  if [ "$backend" = local ]; then
    begin setup need_system_python
  else
    begin setup hack/engine.sh "$backend"
  fi
  await setup "$([ "$backend" = local ] && echo "Python" || echo "$backend")"
  if [ "$backend" != local ]; then
    await_file build "$work/mkimages" "what makes the images"
    begin images "$work/mkimages" "${images[@]}" -cache "$cache/images" -engine "$backend" -address "$containerd_socket"
    await images "images"
  fi
  await build "workcell"
  if [ "${JAEGER:-}" != off ] && ! hack/service.sh jaeger status >/dev/null 2>&1; then begin jaeger nice -n 19 hack/service.sh jaeger up; fi
  say "== ${what[*]} on $backend with $model"
  local flags=(--backend "$backend" --model "$model")
  case ${DEMO:-}/$model in
    cli/scripted/*)
      say "   (a model that plays a script answers; the coding agent, its sandbox and the project are real)"
      begin mock "$work/workcell" dev mockmodel --script "$script"
      follow mock "the model" silent mock
      GOOGLE_GEMINI_BASE_URL=$(head -n 1 "$work/mock.log")
      export GOOGLE_GEMINI_BASE_URL GEMINI_API_KEY=none
      flags=(--backend "$backend")
      ;;
    */scripted/*) say "   (a recorded list of turns plays the model; the sandbox, its files and the commands are real)" ;;
  esac
  local code=0
  "$work/workcell" "${what[@]}" "${flags[@]}" 8>&- || code=$?
  say "== the trace, $((SECONDS - began)) s after the start of this demo"
  if "$work/workcell" runs trace; then
    if [ "${JAEGER:-}" != off ]; then hand_to_jaeger || say "(Jaeger did not get the trace; the demo is none the worse)"; fi
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

# compile builds what the demo needs of the command: not the models of vendors
# when a script plays them, and no engine but the one that is used.
compile() {
  local tags packages=(./cmd/workcell)
  tags=$(demo_tags)
  if [ "$backend" != local ]; then packages=(./e2e/images/cmd/mkimages ./cmd/workcell); fi
  say "modules are fetched"
  go list -deps -tags "$tags" "${packages[@]}" | wc -l >"$work/packages"
  CGO_ENABLED=0 go build -v -trimpath -tags "$tags" -ldflags "-s -w" -o "$work/" "${packages[@]}"
}

demo_tags() {
  local tags=()
  case ${DEMO:-}/$model in
    cli/*) ;;
    */scripted/*) tags+=(no_models) ;;
  esac
  if [ "$backend" != docker ]; then tags+=(no_docker); fi
  if [ "$backend" != containerd ]; then tags+=(no_containerd); fi
  local IFS=,
  printf '%s\n' "${tags[*]}"
}

# begin NAME COMMAND...: starts a command in the background, in a process group
# of its own, so that all of it can be ended.
begin() {
  local name=$1
  shift
  set -m
  "$@" >"$work/$name.log" 2>&1 </dev/null 8>&- &
  set +m
  printf '%s\n' $! >"$work/$name.pid"
}

# await NAME WHAT: ends the demo when a command of begin fails.
await() { ready "$@" || exit 1; }

# ready NAME WHAT: waits for a command of begin and shows how far it is.
ready() {
  local pid start=$SECONDS
  pid=$(cat "$work/$1.pid")
  follow "$1" "$2" running "$pid"
  if ! wait "$pid"; then
    cat "$work/$1.log" >&2
    say "error: $2: failed after $((SECONDS - start)) s"
    return 1
  fi
  say "== $2: ready ($((SECONDS - began)) s)"
}

# await_file NAME FILE WHAT: waits until a command of begin has made a file.
await_file() {
  local pid
  pid=$(cat "$work/$1.pid")
  follow "$1" "$3" missing "$2" "$pid"
  [ -x "$2" ] || await "$1" "$3" # which says why there is none
}

running() { kill -0 "$1" 2>/dev/null; }
missing() { [ ! -x "$1" ] && running "$2"; }

silent() { [ ! -s "$work/$1.log" ] && running "$(cat "$work/$1.pid")"; }

# follow NAME WHAT CONDITION...: shows what is waited for while a condition
# holds: on a terminal each second in one line, else a line every ten.
follow() {
  local name=$1 what=$2 start=$SECONDS shown=$SECONDS line=
  shift 2
  while "$@"; do
    sleep 0.2
    if [ -t 2 ]; then
      if [ $((SECONDS - start)) -lt 1 ] || [ "$shown" = $SECONDS ]; then continue; fi
      shown=$SECONDS line=1
      printf '\r\033[K   %.75s' "$what, $((SECONDS - start)) s: $(how_far "$name")" >&2
    elif [ $((SECONDS - shown)) -ge 10 ] || { [ -z "$line" ] && [ $((SECONDS - start)) -ge 2 ]; }; then
      shown=$SECONDS line=1
      say "   $what, $((SECONDS - start)) s: $(how_far "$name")"
    fi
  done
  if [ -t 2 ] && [ -n "$line" ]; then printf '\r\033[K' >&2; fi
}

# how_far NAME: of a build how many packages it has compiled, else the last line.
how_far() {
  local log=$work/$1.log
  if [ "$1" = build ] && [ -s "$work/packages" ]; then
    printf '%s of %s packages are compiled\n' "$(grep -c '^[^ ]*$' "$log")" "$(cat "$work/packages")"
  else
    tail -n 1 "$log" 2>/dev/null
  fi
}

# hand_to_jaeger: what is kept of the run. Of a Jaeger that had it live it is the address that matters; spans that it has
# already change nothing.
hand_to_jaeger() {
  "$work/workcell" runs trace -o json >"$work/trace.json" || return 1
  if [ -e "$work/jaeger.pid" ]; then
    say "Jaeger is fetched, or built, which takes some minutes the first time. The run is over: Ctrl-C takes nothing away,"
    say "the trace is kept."
    ready jaeger "Jaeger" || return 1
    tail -n 1 "$work/jaeger.log" >&2
  fi
  hack/service.sh jaeger send "$work/trace.json" || return 1
  say "(Jaeger keeps running; hack/service.sh jaeger stop ends it. Built from its module it has the query API, but not the pages.)"
}

main
