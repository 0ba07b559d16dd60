#!/usr/bin/env bash
# Every check and every test, from a bare machine. Sections are timed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

exec </dev/null # which may not even be open
began=$SECONDS
tools_log=$(mktemp)
scratch=$(mktemp -d) # temporary files of the tests
tools_pid=
containerd2=      # socket of the second containerd
containerd2_ours= # 1: this run started it
times=

main() {
  cd "$root"
  section "set-up" setup
  section "sources" sources
  section "embedded guest" guest
  section "vet" go vet ./...
  section "other systems" hack/cross.sh
  section "Jaeger, containerd 2, MCP clients" tools
  local before
  before=$(leftovers)
  section "tests" tests
  section "conformance on containerd 2" on_containerd2
  section "promises on containerd and local" promises
  section "leftovers" nothing_left "$before"
  printf '\n%s\nall passed in %s\n' "$times" "$(elapsed $((SECONDS - began)))"
}

# section NAME COMMAND...: a failure ends everything, with the section's name.
section() {
  local name=$1 start=$SECONDS
  shift
  printf '\n=== %s\n' "$name"
  # Not in a condition: `set -e` would not hold inside the command.
  failed=$name
  "$@"
  failed=
  printf -- '--- %s: %s\n' "$name" "$(elapsed $((SECONDS - start)))"
  times+=$(printf '\n%12s  %s' "$(elapsed $((SECONDS - start)))" "$name")
}

elapsed() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

finish() {
  local code=$?
  if [ -n "$tools_pid" ]; then kill -- "-$tools_pid" 2>/dev/null || true; fi
  if [ -n "$containerd2_ours" ]; then hack/containerd2.sh stop; fi
  rm -rf "$tools_log" "$scratch"
  if [ -n "${failed:-}" ]; then
    printf '\n*** FAILED: %s, after %s\n' "$failed" "$(elapsed $((SECONDS - began)))" >&2
    [ $code -ne 0 ] || code=1
  fi
  exit $code
}

setup() {
  need_go
  if [ "$(uname -s)" != Linux ]; then
    die "the tests run every backend, and two of them are for Linux only" "go test ./PACKAGE runs what Docker is enough for"
  fi
  # The race detector links with the C compiler.
  if is_debian && ! command -v "$(go env CC)" >/dev/null 2>&1; then
    need_packages "go test -race" gcc libc6-dev
  fi
  # Take longest and need nothing: beside everything else until they are
  # needed, in a process group of its own so that all of it can be ended.
  set -m
  nice bash -c 'hack/jaeger.sh path && hack/containerd2.sh path && hack/mcp-tools.sh path' >"$tools_log" 2>&1 </dev/null &
  tools_pid=$!
  set +m
  hack/engine.sh docker containerd
  use_docker_context
  PATH=$(dirname "$(working_docker)"):$PATH # for the tests too
  ENGINES=docker,containerd hack/images.sh
  # What the local backend's sandboxes run is the system's own.
  local program
  for program in python3:python3 node:nodejs; do
    if [ ! -x "/usr/bin/${program%:*}" ] && is_debian; then need_packages "the local backend's tests" "${program#*:}"; fi
  done
}

sources() {
  local bad
  bad=$(gofmt -l .)
  if [ -n "$bad" ]; then
    printf 'not formatted by gofmt:\n%s\n' "$bad"
    return 1
  fi
  # What a test needs is set up above; one that skips proves nothing.
  if grep -rnE '\bt\.Skip(Now|f)?\(' --include='*_test.go' .; then
    echo 'tests must not skip'
    return 1
  fi
  go run ./hack/house . hack/house/bounds.txt
}

guest() { hack/build-guest.sh --check; }

tools() {
  if ! wait "$tools_pid"; then
    tools_pid=
    cat "$tools_log"
    return 1
  fi
  tools_pid=
  tail -n 3 "$tools_log"
  if ! hack/containerd2.sh status 2>/dev/null; then containerd2_ours=1; fi
  containerd2=$(hack/containerd2.sh start)
  ENGINES=containerd CONTAINERD_ADDRESS=$containerd2 hack/images.sh
}

# Packages that run sandboxes on engines go one at a time: fork bombs, killed
# engines and a hundred sandboxes at once are among their tests, and what these
# do to the machine is not what the next package is tested for. While one runs,
# the next one is compiled.
tests() {
  local module all sandboxes
  module=$(go list -m)
  all=$(go list ./...)
  sandboxes=$(grep -E "^$module/(backend/(containerd|docker|local)|cmd/workcell|e2e(/.*)?|examples|internal/guest/client|mcpserver)$" <<<"$all")
  # shellcheck disable=SC2046,SC2086 # one word per package
  {
    gotest $(comm -23 <(sort <<<"$all") <(sort <<<"$sandboxes"))
    gotest -p 2 -exec "flock --close $tools_log" $sandboxes
  } | grep --line-buffered -v '\[no test files\]'
}

gotest() { TMPDIR=$scratch go test -race -count=1 -vet=off -timeout 15m -parallel 4 "$@"; } # go vet has seen them

# What a driver owes, once more on a containerd that is current, and what sessions make of it.
on_containerd2() {
  CONTAINERD_ADDRESS=$containerd2 gotest -run '^TestConformance' ./backend/containerd
  CONTAINERD_ADDRESS=$containerd2 WORKCELL_TEST_BACKEND=containerd gotest ./e2e/conformance
}

# Promises to which the engine adds nothing: files that users write, clocks of the host, the user's terminal.
neutral='^Test(B4Terminal|F12Clock|K8InterruptedRunEnds|Q[0-9])'

# The tests above had Docker for these. The two engines know nothing of each other, and most of the time is spent waiting.
promises() {
  local backend pids=() pid bad=
  for backend in containerd local; do
    WORKCELL_TEST_BACKEND=$backend gotest -skip "$neutral" ./e2e/promises &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || bad=1; done
  [ -z "$bad" ]
}

# leftovers lists what a test may leave: things on the engines, what the local
# backend keeps, temporary files, and processes of the programs that tests
# build or start.
leftovers() {
  local l=label=dev.workcell.instance p
  docker ps --all --no-trunc --filter $l --format 'container {{.ID}} {{.Names}}'
  docker volume ls --filter $l --format 'volume {{.Name}}'
  docker network ls --no-trunc --filter $l --format 'network {{.ID}} {{.Name}}'
  containerd_leftovers "$containerd_socket"
  if [ -n "$containerd2" ]; then containerd_leftovers "$containerd2"; fi
  find "$scratch" -mindepth 1 -maxdepth 1 -printf 'file %p\n' 2>/dev/null || true
  find /var/lib/workcell/containerd /var/lib/workcell/local -mindepth 2 -maxdepth 2 \
    \( -path '*/sandboxes/*' -o -path '*/workspaces/*' \) -printf 'state %p\n' 2>/dev/null || true
  find /sys/fs/cgroup -type d \( -path '*/workcell/*' -o -name 'workcell-*' \) -printf 'cgroup %p\n' 2>/dev/null || true
  find /sys/class/net/workcell0/brif -mindepth 1 -printf 'interface %f\n' 2>/dev/null || true
  awk '/sbx_|\/workcell\// {print "mount " $5}' /proc/self/mountinfo
  for p in /proc/[0-9]*; do
    case $(readlink "$p/exe" 2>/dev/null) in
      "$scratch"/* | "$cache"/jaeger/* | *workcell-guest*) printf 'process %s %s\n' "${p#/proc/}" "$(tr '\0' ' ' <"$p/cmdline" 2>/dev/null)" ;;
    esac
  done
}

# containerd_leftovers SOCKET: in the namespaces of the project and its tests.
containerd_leftovers() {
  local ns kind
  for ns in $(ctr --address "$1" namespaces ls -q | grep '^workcell'); do
    for kind in containers leases images; do
      ctr --address "$1" -n "$ns" $kind ls -q | sed "s|^|containerd $ns $kind |"
    done
    ctr --address "$1" -n "$ns" tasks ls -q | sed "s|^|containerd $ns task |"
    ctr --address "$1" -n "$ns" snapshots ls | awk -v ns="$ns" 'NR > 1 {print "containerd " ns " snapshot " $1}'
  done
}

nothing_left() {
  local new deadline=$((SECONDS + 30))
  while :; do
    new=$(comm -13 <(sort <<<"$1") <(leftovers | sort))
    [ -n "$new" ] || break
    if [ $SECONDS -ge $deadline ]; then
      printf 'the tests left behind:\n%s\n' "$new"
      return 1
    fi
    sleep 0.5
  done
  # A process that is killed while it finds out what can hold a workspace leaves
  # what the next one that does so removes five minutes later.
  docker volume ls --filter label=dev.workcell.probe --format 'note: the volume {{.Name}} is left of a killed process'
  echo "nothing was left behind: no container, volume, network, snapshot, lease, mount, cgroup, file or process"
}

trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
main
