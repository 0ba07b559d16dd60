#!/usr/bin/env bash
# Runs the tests. hack/tests.txt says which test runs where.
#
#   test.sh            make test: the fast tier, on Docker, containerd and local
#   test.sh AREA...    areas: engines containerd2 gvisor kubernetes postgres agents page network systems newcomer
#   test.sh all        make test, then every area
#
# It installs and starts what it needs, and stops what it started.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# test.sh slot FIFO COMMAND...: runs a command when the FIFO has a place, which is a line, and puts the line back.
if [ "${1:-}" = slot ]; then
  exec 9<>"$2"
  read -r -u 9
  trap 'echo >&9' EXIT
  renice -n 0 -p $$ >/dev/null 2>&1 || true # compilers are nice, tests are not
  "${@:3}" 9>&-
  exit
fi

areas="engines containerd2 gvisor kubernetes postgres agents page network systems newcomer"
tags=no_kubernetes # in make test: client-go is a third of what the command compiles
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath" # other checkouts share what was compiled
began=$SECONDS
times='' section=''
lanes=() # processes in the background
stops=() # commands that stop what was started

main() {
  local area
  cd "$root"
  need_go
  [ "$(uname -s)" = Linux ] || die "the tests run every backend, and two of them need Linux" "go test ./PACKAGE runs what Docker is enough for"
  scratch=$(mktemp -d) # temporary files of the tests
  work=$(mktemp -d)    # test binaries, logs
  at_exit 'rm -rf "$scratch" "$work"'
  at_exit stop_services
  at_exit 'if [ "$code" -ne 0 ]; then report "*** FAILED: ${section:-set-up}"; fi'
  if is_debian && ! command -v "$(go env CC)" >/dev/null 2>&1; then need_packages "go test -race" gcc libc6-dev; fi
  mkfifo "$work/slots"
  exec 8<>"$work/slots"
  for _ in $(seq $(($(nproc) + 1))); do echo >&8; done
  go build -o "$work/tiers" ./hack/tiers
  for area in "${@:-test}"; do [[ " test all $areas " == *" $area "* ]] || die "unknown area $area" "one of: $areas"; done
  if [ "${*:-}" = all ]; then
    # shellcheck disable=SC2086 # one word per area
    set -- test $areas
  fi
  for area in "${@:-test}"; do
    "$work/tiers" "$area" >"$work/plan-$area"
    if [ "$area" = test ]; then fast; else area "$area"; fi
  done
  ended
  case ${*:-test} in
    test) if [ $SECONDS -gt $((began + 1200)) ]; then times+=$'\n'"WARNING: the goal of make test is 20 minutes"; fi ;;
    "test $areas") if [ $SECONDS -gt $((began + 4500)) ]; then times+=$'\n'"WARNING: the goal of make test-all is 75 minutes"; fi ;;
  esac
  report "all passed"
}

# report OUTCOME: prints the times of the sections, and writes them to dist/test-times.txt.
report() {
  mkdir -p dist
  { printf '%s\n' "${times#?}" && printf '%12s  %s\n' "$(elapsed $((SECONDS - began)))" "$1"; } | tee dist/test-times.txt
}

# fast is make test. Tests that need no engine run while the engines are set up.
fast() {
  begin "checks"
  engines
  start machine "debian,python,node"
  sources
  begin "compile, and tests without an engine"
  bulk test
  wait_for machine
  local before
  before=$(leftovers)
  compile test plain
  begin "tests on engines"
  compile test race
  lane "vet" vet
  finished
  begin "leftovers"
  nothing_new "$before" leftovers
  stop_services
  say "nothing was left: no container, volume, network, snapshot, lease, mount, control group, file or process"
}

# area NAME: what tests.txt has for it, with what it needs around it.
area() {
  local before
  tags=
  begin "$1: set-up"
  engines
  start machine "debian,python,node,net"
  wait_for machine
  if declare -F "need_$1" >/dev/null; then "need_$1"; fi
  before=$(leftovers)
  begin "$1"
  if [ "$1" != gvisor ]; then # hack/gvisor.sh runs its suites on an engine that has runsc
    bulk "$1"
    compile "$1" plain
    compile "$1" race
    if grep -q '^alone;' "$work/plan-$1"; then finished; compile "$1" alone; fi
  fi
  if declare -F "also_$1" >/dev/null; then "also_$1"; fi
  finished
  begin "$1: leftovers"
  nothing_new "$before" leftovers
  stop_services
}

# engines remembers to stop each engine that does not run now.
engines() {
  containerd_answers "$containerd_socket" || stops+=("hack/engine.sh stop containerd")
  engine_answers || stops+=("hack/engine.sh stop docker")
}

# machine IMAGES: engines that answer, and the images of the tests in them.
machine() {
  hack/engine.sh docker containerd
  ENGINES=docker,containerd hack/images.sh -only "$1"
  # Sandboxes of the local backend run the programs of the system.
  if is_debian; then
    [ -x /usr/bin/python3 ] || need_packages "the local backend's tests" python3
    [ -x /usr/bin/node ] || need_packages "the local backend's tests" nodejs
  fi
}

need_engines() {
  if is_debian; then PATH=$PATH:/usr/sbin need_packages "snapshots on XFS, networks and Compose files" xfsprogs iproute2 procps docker-compose; fi
}

need_containerd2() {
  service containerd2 CONTAINERD2
  ENGINES=containerd CONTAINERD_ADDRESS=$CONTAINERD2 hack/images.sh
}

also_gvisor() { lane "gVisor" hack/gvisor.sh test; }

need_kubernetes() {
  if ! hack/cluster.sh status >/dev/null 2>&1; then stops+=("hack/cluster.sh down"); fi
  hack/cluster.sh up
  hack/tool.sh helm
  cluster_before=$(hack/cluster.sh left)
}

also_kubernetes() { finished && nothing_new "$cluster_before" hack/cluster.sh left; }

need_postgres() {
  if is_debian && ! command -v ip >/dev/null; then need_packages "networks of the workers' tests" iproute2; fi
  service postgres WORKCELL_TEST_POSTGRES
  export WORKCELL_TEST_POSTGRES
}

need_agents() {
  hack/tool.sh npm
  ENGINES=docker,containerd hack/images.sh -agents
  hack/tool.sh chromium
}

need_page() {
  hack/tool.sh npm
  hack/tool.sh chromium
  need_postgres
}

also_systems() {
  lane "embedded guest" hack/build-guest.sh --check
  finished
  begin "systems: release"
  hack/release.sh check
  git clone -q . "$work/tree"
  "$work/tree/hack/release.sh" snapshot
  begin "systems: other systems"
  other_systems
  begin "systems: lint"
  make lint
  begin "systems: fuzz"
  make fuzz
}

need_newcomer() { hack/tool.sh jaeger; }

# other_systems vets all packages for the other systems. It needs the packages that the release has compiled.
other_systems() {
  local target
  for target in darwin/arm64 windows/amd64; do
    CGO_ENABLED=0 GOOS=${target%/*} GOARCH=${target#*/} go vet ./... ./e2e/... || die "$target: go vet found something"
    say "$target: ok"
  done
}

sources() {
  local bad
  bad=$(gofmt -l .)
  [ -z "$bad" ] || die "not formatted by gofmt: $bad"
  # This script sets up what the tests need, and a test that skips shows nothing.
  if grep -rnE '\bt\.Skip(Now|f)?\(' --include='*_test.go' .; then die "tests must not skip"; fi
  go run ./hack/house . hack/house/bounds.txt >/dev/null
  go run ./hack/words . >/dev/null
  go run ./hack/tiers check
  go run ./hack/api | diff -U 0 hack/api/api.txt - || die "the public API has changed" "go run ./hack/api >hack/api/api.txt"
  hack/build-guest.sh --version
}

vet() {
  nice go vet -race -tags $tags ./... ./e2e/... &&
    nice go vet -tags "$(BACKEND=local hack/demo.sh tags)" ./cmd/workcell/...
}

# bulk PLACE: packages that need no engine and of which the place has all tests but those of a pattern, with one go test.
bulk() {
  local mode package backend run skip packages=() skips=()
  while IFS=';' read -r mode package backend run skip; do
    [ "$mode $backend $run" = "race - " ] || continue
    packages+=("./$package")
    if [ -n "$skip" ]; then skips+=("$skip"); fi
  done <"$work/plan-$1"
  [ ${#packages[@]} -eq 0 ] || lane "packages without an engine" packages "$(IFS='|' && printf '%s' "${skips[*]:-^$}")" "${packages[@]}"
}

packages() {
  # The time of each package includes its wait for a place.
  TMPDIR=$scratch nice go test -race ${tags:+-tags $tags} -count=1 -vet=off -timeout 30m -parallel 6 -p $(($(nproc) + 1)) -skip "$1" \
    -exec "$root/hack/test.sh slot $work/slots" "${@:2}" | grep -a --line-buffered -v '\[no test files\]'
}

# compile PLACE MODE: builds one test binary after the other, and starts its lanes.
compile() {
  local mode package backend run skip flags=() binary
  if [ "$2" != plain ]; then flags+=(-race); fi
  if [ -n "$tags" ]; then flags+=(-tags "$tags"); fi
  while IFS=';' read -r mode package backend run skip; do
    if [ "$mode" != "$2" ] || [ "$mode $backend $run" = "race - " ]; then continue; fi
    command_binary
    binary=$work/${2/alone/race}-$tags-${package//\//-}.test
    [ -e "$binary" ] || nice go test "${flags[@]}" -vet=off -c -o "$binary" "./$package"
    lane "$package${backend:+ on $backend}" binary "$binary" "$package" "$backend" "$run" "$skip"
  done <"$work/plan-$1"
}

# command_binary builds the command that tests of whole processes start.
command_binary() {
  export WORKCELL_TEST_COMMAND=$work/workcell-$tags
  [ -e "$WORKCELL_TEST_COMMAND" ] || nice go build ${tags:+-tags $tags} -o "$WORKCELL_TEST_COMMAND" ./cmd/workcell
}

# binary FILE PACKAGE BACKEND RUN SKIP
binary() {
  local environment=("TMPDIR=$scratch")
  case $3 in
    -) ;;
    containerd2) environment+=("WORKCELL_TEST_BACKEND=containerd" "CONTAINERD_ADDRESS=$CONTAINERD2") ;;
    *) environment+=("WORKCELL_TEST_BACKEND=$3") ;;
  esac
  (cd "$2" && env "${environment[@]}" "$root/hack/test.sh" slot "$work/slots" "$1" -test.timeout 60m -test.parallel 4 \
    ${4:+-test.run "$4"} ${5:+-test.skip "$5"})
}

# begin SECTION ends the section before.
begin() {
  ended
  section=$1 section_began=$SECONDS
  printf '\n=== %s\n' "$1"
}

ended() {
  [ -n "$section" ] || return 0
  times+=$(printf '\n%12s  %s' "$(elapsed $((SECONDS - section_began)))" "$section")
  section=
}

elapsed() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

# start NAME ARGUMENT...: runs a function in the background until wait_for NAME, which shows what it printed.
start() {
  ("$@" >"$work/$1.log" 2>&1 8>&-) &
  lanes+=($!)
  printf '%s\n' $! >"$work/$1.pid"
}

wait_for() {
  local code=0
  wait "$(cat "$work/$1.pid")" || code=$?
  cat "$work/$1.log"
  [ $code -eq 0 ] || die "$1 failed"
  use_docker_context
  PATH=$(dirname "$(working_docker)"):$PATH # for the tests too
}

# lane NAME COMMAND...: runs in the background. Its output is shown if it fails.
lane() {
  local name=$1
  shift
  (
    exec 8>&- # tests must not inherit it
    log=$(mktemp -p "$work") start=$SECONDS code=0
    "$@" >"$log" 2>&1 || code=$?
    if [ $code -ne 0 ]; then cat "$log"; fi
    printf '%-4s %-50s %s\n' "$([ $code -eq 0 ] && echo ok || echo FAIL)" "$name" "$(elapsed $((SECONDS - start)))"
    [ $code -eq 0 ] || printf '%s\n' "$name" >>"$work/failed"
  ) &
  lanes+=($!)
}

# finished waits for all lanes, and names those that failed.
finished() {
  local pid
  for pid in "${lanes[@]}"; do wait "$pid" || true; done
  lanes=()
  if [ -e "$work/failed" ]; then
    sed 's/^/*** failed: /' "$work/failed"
    exit 1
  fi
}

# service NAME VARIABLE: starts it unless it runs, and sets the variable to where it answers.
service() {
  local address
  if ! hack/service.sh "$1" status >/dev/null 2>&1; then stops+=("hack/service.sh $1 stop"); fi
  address=$(hack/service.sh "$1" start | tail -n 1)
  printf -v "$2" %s "$address"
}

stop_services() {
  local i
  for ((i = ${#stops[@]} - 1; i >= 0; i--)); do ${stops[i]} || true; done
  stops=()
  unset CONTAINERD2 WORKCELL_TEST_POSTGRES
}

# leftovers lists what a test may leave: objects on the engines, state of the local backend, temporary files, and processes of
# programs that tests build or start. It fails if it cannot look.
leftovers() {
  local l=label=dev.workcell.instance p
  engine_answers && containerd_answers "$containerd_socket" || return 1
  docker ps --all --no-trunc --filter $l --format 'container {{.ID}} {{.Names}}'
  docker ps --all --filter label=com.docker.compose.project=workcell-test --format 'container {{.ID}} {{.Names}}'
  docker volume ls --filter $l --format 'volume {{.Name}}'
  docker network ls --no-trunc --filter $l --format 'network {{.ID}} {{.Name}}'
  containerd_leftovers "$containerd_socket"
  if [ -n "${CONTAINERD2:-}" ]; then containerd_leftovers "$CONTAINERD2"; fi
  find "$scratch" -mindepth 1 -maxdepth 1 -printf 'file %p\n' 2>/dev/null || true
  find /var/lib/workcell/containerd /var/lib/workcell/local -mindepth 2 -maxdepth 2 \
    \( -path '*/sandboxes/*' -o -path '*/workspaces/*' \) -printf 'state %p\n' 2>/dev/null || true
  find /sys/fs/cgroup -type d \( -path '*/workcell/*' -o -name 'workcell-*' \) -printf 'cgroup %p\n' 2>/dev/null || true
  find /sys/class/net/workcell0/brif -mindepth 1 -printf 'interface %f\n' 2>/dev/null || true
  # gVisor keeps the network namespace of all that have no network. The cluster's containerd leaves a mount if an image's
  # /etc/passwd is not a file; the end of the cluster removes it.
  awk '/sbx_|\/workcell\// && !/\/null-netns |\/cluster\/containerd\/tmpmounts\// {print "mount " $5}' /proc/self/mountinfo
  for p in /proc/[0-9]*; do
    case $(readlink "$p/exe" 2>/dev/null) in
      "$scratch"/* | "$work"/* | "$cache"/jaeger/* | *workcell-guest*) printf 'process %s %s\n' "${p#/proc/}" "$(tr '\0' ' ' <"$p/cmdline" 2>/dev/null)" ;;
    esac
  done
  return 0
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

# nothing_new BEFORE COMMAND...: within 30 s the command lists what it listed before, and no more.
nothing_new() {
  local before=$1 now new deadline=$((SECONDS + 30))
  shift
  while :; do
    now=$("$@") || die "what the tests left cannot be listed"
    new=$(comm -13 <(sort <<<"$before") <(sort <<<"$now"))
    [ -n "$new" ] || break
    if [ $SECONDS -ge $deadline ]; then
      printf 'the tests left behind:\n%s\n' "$new"
      return 1
    fi
    sleep 0.5
  done
}

supervise main "$@"
