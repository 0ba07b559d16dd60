#!/usr/bin/env bash
# Every check and every test, from a bare machine. Sections are timed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

exec </dev/null # which may not even be open
# What another checkout has built comes from the cache.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
began=$SECONDS
tools_log=$(mktemp)
cluster_log=$(mktemp)
scratch=$(mktemp -d) # temporary files of the tests
bins=$(mktemp -d)    # test binaries and the output of lanes
tools_pid=
cluster_pid=      # builds Kubernetes
cluster_ours=     # 1: this run started the cluster
containerd2=      # socket of the second containerd
containerd2_ours= # 1: this run started it
postgres_ours=    # 1: this run started PostgreSQL
times=
slots= # see lanes
pids=() names=()

main() {
  cd "$root"
  section "set-up" setup
  section "sources" sources
  section "embedded guest" guest
  section "vet" vet
  section "Jaeger, containerd 2, MCP clients, gVisor, PostgreSQL" tools
  local before
  before=$(leftovers)
  section "tests" lanes
  section "conformance on containerd 2" on_containerd2
  section "Kubernetes" on_kubernetes
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
  local pid
  for pid in $tools_pid $cluster_pid; do kill -- "-$pid" 2>/dev/null || true; done
  if [ -n "$cluster_ours" ]; then hack/cluster.sh down; fi
  if [ -n "$containerd2_ours" ]; then hack/service.sh containerd2 stop; fi
  if [ -n "$postgres_ours" ]; then hack/service.sh postgres stop; fi
  rm -rf "$tools_log" "$cluster_log" "$scratch" "$bins"
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
  nice bash -c 'for t in jaeger containerd2 npm runsc helm; do hack/tool.sh $t || exit; done' >"$tools_log" 2>&1 </dev/null &
  tools_pid=$!
  set +m
  if is_debian && ! command -v ip >/dev/null 2>&1; then need_packages "networks of the workers' tests" iproute2; fi
  hack/engine.sh docker containerd
  use_docker_context
  PATH=$(dirname "$(working_docker)"):$PATH # for the tests too
  ENGINES=docker,containerd hack/images.sh
  ENGINES=docker,containerd hack/images.sh -agents
  if is_debian && ! command -v docker-compose >/dev/null 2>&1; then need_packages "the Compose files" docker-compose; fi
  if is_debian && ! PATH=$PATH:/usr/sbin:/sbin command -v mkfs.xfs >/dev/null; then need_packages "tests of snapshots on XFS" xfsprogs; fi
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

# vet looks at the whole, and at the command as `make demo` builds it.
vet() {
  go vet ./...
  go vet -tags no_docker,no_containerd,no_models ./cmd/workcell ./internal/engines ./internal/models
}

tools() {
  if ! wait "$tools_pid"; then
    tools_pid=
    cat "$tools_log"
    return 1
  fi
  tools_pid=
  tail -n 5 "$tools_log"
  # Some ten minutes the first time, beside the tests on the other engines.
  set -m
  nice -n 19 hack/cluster.sh path >"$cluster_log" 2>&1 </dev/null &
  cluster_pid=$!
  set +m
  if ! hack/service.sh containerd2 status >/dev/null 2>&1; then containerd2_ours=1; fi
  containerd2=$(hack/service.sh containerd2 start | tail -n 1)
  ENGINES=containerd CONTAINERD_ADDRESS=$containerd2 hack/images.sh
  if ! hack/service.sh postgres status >/dev/null 2>&1; then postgres_ours=1; fi
  WORKCELL_TEST_POSTGRES=$(hack/service.sh postgres start | tail -n 1)
  export WORKCELL_TEST_POSTGRES
}

# lanes runs what knows nothing of each other side by side. Most of a test of sandboxes is waiting for engines, so there are
# as many places for test binaries as there are processors: each takes one while it runs, and meanwhile the next ones are
# compiled. Binaries that run on several engines are built once. With more places all takes as long, and engines miss deadlines.
lanes() {
  local module engines all alone=() i
  module=$(go list -m)
  slots=$bins/slots
  mkfifo "$slots"
  exec 8<>"$slots"
  for ((i = 0; i < $(nproc); i++)); do echo >&8; done
  go test -race -vet=off -c -o "$bins/" ./backend/containerd ./e2e/conformance ./e2e/executor ./e2e/promises
  # Each of its hundreds of processes takes three times as long to start with the race detector; what they run has it in its packages,
  # and what the command itself does at once, see goroutines.
  go test -vet=off -c -o "$bins/" ./cmd/workcell
  # The longest first.
  engines="$module/(backend/(docker|local)|e2e(/.*)?|examples|internal/guest/client|mcpserver)$"
  all=$(go list ./... | grep -vxE "$module/(backend/(containerd|kubernetes)|cmd/workcell|e2e/(conformance|executor|install|promises))")
  # shellcheck disable=SC2046 # one word per package
  alone=($(grep -xE "$engines" <<<"$all") $(grep -vxE "$engines" <<<"$all"))
  lane "promises on docker" binary e2e/promises WORKCELL_TEST_BACKEND=docker -test.skip "$neutral"
  lane "promises on containerd" binary e2e/promises WORKCELL_TEST_BACKEND=containerd -test.skip "$neutral"
  lane "promises on local" binary e2e/promises WORKCELL_TEST_BACKEND=local
  lane "coding agents" binary e2e/executor -test.skip "$recorded"
  lane "the command" binary cmd/workcell
  lane "the command's goroutines" goroutines
  lane "packages" packages "${alone[@]}"
  lane "containerd driver" binary backend/containerd
  lane "conformance" binary e2e/conformance
  lane "other systems" nice hack/cross.sh
  finished
}

# on_containerd2 runs what a driver owes once more on a containerd that is current, and what sessions make of it. Both
# containerds would keep the files of their sandboxes in one place, so this is not a lane beside the others.
on_containerd2() {
  lane "containerd driver on containerd 2" binary backend/containerd CONTAINERD_ADDRESS="$containerd2" -test.run '^TestConformance'
  lane "conformance on containerd 2" binary e2e/conformance CONTAINERD_ADDRESS="$containerd2" WORKCELL_TEST_BACKEND=containerd
  finished
}

# on_kubernetes runs what cluster.sh lists.
on_kubernetes() {
  local package flags before
  if kill -0 "$cluster_pid" 2>/dev/null; then echo "waiting for the build of Kubernetes"; fi
  if ! wait "$cluster_pid"; then
    cat "$cluster_log"
    return 1
  fi
  cluster_pid=
  if ! hack/cluster.sh status 2>/dev/null; then cluster_ours=1; fi
  hack/cluster.sh up
  before=$(hack/cluster.sh left)
  # shellcheck disable=SC2046 # one word per package
  go test -race -vet=off -c -o "$bins/" $(hack/cluster.sh suites | sed 's|^\([^ ]*\).*|./\1|')
  while read -r package flags; do
    # shellcheck disable=SC2086 # flags are words
    lane "$package on Kubernetes" binary "$package" WORKCELL_TEST_BACKEND=kubernetes $flags
  done < <(hack/cluster.sh suites)
  finished
  nothing_new "$before" hack/cluster.sh left
  if [ -n "$cluster_ours" ]; then hack/cluster.sh down; fi
  cluster_ours=
}

# finished waits for all lanes, and names those that failed.
finished() {
  local i failed_lanes=()
  for i in "${!pids[@]}"; do
    wait "${pids[i]}" || failed_lanes+=("${names[i]}")
  done
  pids=() names=()
  if [ ${#failed_lanes[@]} -gt 0 ]; then
    printf '*** failed: %s\n' "${failed_lanes[@]}"
    return 1
  fi
}

# lane NAME COMMAND...: in the background, its output when it has ended, but for that of packages, which comes by and by.
lane() {
  local name=$1
  shift
  names+=("$name")
  (
    exec 8>&- # tests must not inherit it
    local log start=$SECONDS code=0
    log=$(mktemp -p "$bins")
    if [ "$name" = "packages" ]; then "$@" || code=$?; else "$@" >"$log" 2>&1 || code=$?; fi
    if [ $code -ne 0 ]; then cat "$log"; fi
    printf '%-4s %-40s %s\n' "$([ $code -eq 0 ] && echo ok || echo FAIL)" "$name" "$(elapsed $((SECONDS - start)))"
    exit $code
  ) &
  pids+=($!)
}

# binary PACKAGE [VARIABLE=VALUE...] [FLAG...]: a test binary that was built above.
binary() {
  local package=$1 environment=()
  shift
  while [[ ${1:-} == [A-Z]*=* ]]; do
    environment+=("$1")
    shift
  done
  (cd "$package" && env TMPDIR="$scratch" "${environment[@]}" "$root/hack/slot.sh" "$slots" "$bins/$(basename "$package").test" -test.timeout 15m -test.parallel 4 "$@")
}

packages() {
  # The time includes that spent waiting for a place. Compilers give way to tests.
  TMPDIR=$scratch nice go test -race -count=1 -vet=off -timeout 40m -parallel 4 -p $(($(nproc) + 2)) -exec "$root/hack/slot.sh $slots" "$@" |
    grep -a --line-buffered -v '\[no test files\]'
}

# goroutines runs what of the command needs no process of its own. As in packages, the time includes the wait for a place.
goroutines() {
  TMPDIR=$scratch nice go test -race -count=1 -vet=off -timeout 40m -exec "$root/hack/slot.sh $slots" ./cmd/workcell \
    -run '^Test(Asker|Detach|Copy|TakeStdout|Progress|LineLog|LastWords|Reaper|Clip)'
}

# Promises to which the engine adds nothing, and which the cheapest one shows: files that users write, clocks of the host, the
# user's terminal.
neutral='^Test(B4Terminal|F12Clock|K8InterruptedRunEnds|Q[0-9])'

# What CLI coding agents of pinned versions answer to their models is recorded, and their parsers are tested with that. OpenCode and
# Gemini CLI take many seconds of a processor to start: what does not differ by CLI is shown with the others. `make contract` tries all
# of it with new versions, `go test ./e2e/executor -record` with these.
recorded='^Test(Shell|Refused|Broken|Thinking|Safety|Schema|MaxTurns|ACPRecorded)$|^Test(Faults|LostSession|Skills|Walls|Containerd|Local)$/^(opencode|gemini)$'

# leftovers lists what a test may leave: things on the engines, what the local
# backend keeps, temporary files, and processes of the programs that tests
# build or start.
leftovers() {
  local l=label=dev.workcell.instance p
  docker ps --all --no-trunc --filter $l --format 'container {{.ID}} {{.Names}}'
  docker ps --all --filter label=com.docker.compose.project=workcell-test --format 'container {{.ID}} {{.Names}}'
  docker volume ls --filter $l --format 'volume {{.Name}}'
  docker network ls --no-trunc --filter $l --format 'network {{.ID}} {{.Name}}'
  containerd_leftovers "$containerd_socket"
  if [ -n "$containerd2" ]; then containerd_leftovers "$containerd2"; fi
  find "$scratch" -mindepth 1 -maxdepth 1 -printf 'file %p\n' 2>/dev/null || true
  find /var/lib/workcell/containerd /var/lib/workcell/local -mindepth 2 -maxdepth 2 \
    \( -path '*/sandboxes/*' -o -path '*/workspaces/*' \) -printf 'state %p\n' 2>/dev/null || true
  find /sys/fs/cgroup -type d \( -path '*/workcell/*' -o -name 'workcell-*' \) -printf 'cgroup %p\n' 2>/dev/null || true
  find /sys/class/net/workcell0/brif -mindepth 1 -printf 'interface %f\n' 2>/dev/null || true
  # gVisor keeps the network namespace of all that have no network.
  awk '/sbx_|\/workcell\// && !/\/null-netns / {print "mount " $5}' /proc/self/mountinfo
  for p in /proc/[0-9]*; do
    case $(readlink "$p/exe" 2>/dev/null) in
      "$scratch"/* | "$bins"/* | "$cache"/jaeger/* | *workcell-guest*) printf 'process %s %s\n' "${p#/proc/}" "$(tr '\0' ' ' <"$p/cmdline" 2>/dev/null)" ;;
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

# nothing_new BEFORE COMMAND...: what the command lists is soon again what it was.
nothing_new() {
  local before=$1 new deadline=$((SECONDS + 30))
  shift
  while :; do
    new=$(comm -13 <(sort <<<"$before") <("$@" | sort))
    [ -n "$new" ] || break
    if [ $SECONDS -ge $deadline ]; then
      printf 'the tests left behind:\n%s\n' "$new"
      return 1
    fi
    sleep 0.5
  done
}

nothing_left() {
  nothing_new "$1" leftovers
  # A process that is killed while it finds out what can hold a workspace leaves
  # what the next one that does so removes five minutes later.
  docker volume ls --filter label=dev.workcell.probe --format 'note: the volume {{.Name}} is left of a killed process'
  echo "nothing was left behind: no container, volume, network, snapshot, lease, mount, cgroup, file or process"
}

trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
main
