#!/usr/bin/env bash
# gVisor's OCI runtime, runsc, built from its Go module: a kernel of their own for sandboxes that ask for it.
#
#   gvisor.sh path       build it once (some minutes on 2 cores), print the path of the program
#   gvisor.sh install    as root: put it into the PATH with the flags that sandboxes need, and register it with Docker;
#                        containerd's driver finds it in the PATH. A runsc of somebody else's is left alone.
#   gvisor.sh start      run a Docker Engine of its own in the background whose default runtime it is, print its DOCKER_HOST
#   gvisor.sh stop       end what start started
#   gvisor.sh test       the suites of drivers, sessions, promises and host tools with all their sandboxes on it
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

module=$root/e2e/gvisor
wrapper=/usr/local/bin/runsc
library=/usr/local/libexec/workcell
config=/etc/docker/daemon.json
state=/run/workcell/gvisor # short: paths of sockets are limited
data=/var/lib/workcell/gvisor
socket=$state/docker.sock
pidfile=$state/dockerd.pid
bridge=workcell-gv # that nobody uses
log=$data/dockerd.log
mark="# made by workcell's hack/gvisor.sh"

main() {
  [ "$(uname -s)" = Linux ] || die "gVisor runs on Linux only"
  case ${1:-} in
    path) program ;;
    install) install_runsc ;;
    start) start ;;
    stop) stop ;;
    test) run_tests ;;
    *) die "usage: gvisor.sh path|install|start|stop|test" ;;
  esac
}

# program prints the path of the binary, which it makes first where needed.
program() {
  need_go
  local version file
  version=$(module_version gvisor.dev/gvisor "$module/go.mod")
  file=$cache/gvisor/runsc-$version-$(go env GOARCH)
  once "$file" compile "$version" "$file"
  printf '%s\n' "$file"
}

compile() {
  say "building gVisor $1 from its Go module: takes some minutes, once"
  build_module "$module" "$2" -ldflags "-s -w -X gvisor.dev/gvisor/runsc/version.version=$1" gvisor.dev/gvisor/runsc ||
    die "gVisor could not be built"
}

install_runsc() {
  [ "$(id -u)" = 0 ] || die "gVisor is installed by root"
  local there
  there=$(command -v runsc || true)
  if [ -n "$there" ] && ! grep -qsF "$mark" "$there"; then
    say "runsc is here already: $there"
  else
    wrap
    there=$wrapper
  fi
  use_docker_context
  case ${DOCKER_HOST:-unix:///var/run/docker.sock} in # the engine of this machine
    unix:///var/run/docker.sock | unix:///run/docker.sock) if engine_answers; then register "$there"; fi ;;
  esac
  say "$("$there" --version | head -n 1) is $there"
}

# wrap installs the program of the cache, and before it the flags: what the image's file system gets lies in the container's
# own layer, where it outlives a stop and an environment is kept from, and the system calls are filtered inside as well.
wrap() {
  local file kept
  file=$(program)
  kept=$library/${file##*/}
  if [ ! -e "$kept" ]; then
    install -D -m 0755 "$file" "$kept.new.$$"
    mv "$kept.new.$$" "$kept"
  fi
  if grep -qsF "exec $kept " "$wrapper"; then return; fi
  install -d -m 0755 "${wrapper%/*}"
  printf '#!/bin/sh\n%s\nexec %s --overlay2=none "$@"\n' "$mark" "$kept" >"$wrapper.new.$$"
  chmod 0755 "$wrapper.new.$$"
  mv "$wrapper.new.$$" "$wrapper"
}

# No pipe: a grep that has seen enough ends the program before it, which pipefail takes for a failure.
has_runsc() { [[ " $("$(working_docker)" info --format '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}')" == *" runsc "* ]]; }

# stock: Docker has the runtimes that it comes with. When it reloads, what its flags name is lost, and without its default
# runtime Docker 20.10 ends.
stock() {
  [ -z "$("$(working_docker)" info --format '{{.DefaultRuntime}} {{range $name, $_ := .Runtimes}}{{println $name}}{{end}}' |
    tr ' ' '\n' | grep -vE '^(runc|io\.containerd\.run.*)?$')" ]
}

# register tells Docker. A configuration that somebody wrote is not touched.
register() {
  if has_runsc; then return; fi
  if [ -e "$config" ] || ! stock || { [ ! -d /run/systemd/system ] && [ ! -e /var/run/docker.pid ]; }; then
    die "Docker does not know the runtime runsc" \
      "add {\"runtimes\": {\"runsc\": {\"path\": \"$1\"}}} to $config and restart Docker"
  fi
  install -d -m 0755 "${config%/*}"
  printf '{"runtimes": {"runsc": {"path": "%s"}}}\n' "$1" >"$config"
  # Running containers are not touched by a reload.
  if [ -d /run/systemd/system ]; then systemctl reload docker; else kill -HUP "$(cat /var/run/docker.pid)"; fi
  local deadline=$((SECONDS + 20))
  until has_runsc; do
    [ $SECONDS -lt $deadline ] || die "Docker does not list runsc after a reload" "see its log"
    sleep 0.1
  done
}

# Tests of what cannot hold on gVisor, or that look at processes of the machine which are gVisor's own: docs/gvisor.md has the
# promises, this their names.
not_on_gvisor='^Test(LimitsShow|Snapshots|CommandOutOfMemory|L4Reserved)$|^TestConformance$/^snapshots$'
not_on_gvisor+='|^Test(A1Outside|A6SwapRace|A7DeleteRace|A8LinkLoops|G1Flood|G6Stream|H1Memory|H2Processes|H3Places|H3Root|M4SocketKinds)$'
not_on_gvisor+='|^TestN(4Namespaces|6Mounts|7KernelFiles|9Guest|9SystemCalls|10Limits)$'
for row in isolation/of_the_default_user 'isolation/of_the_guest.s_files' isolation/of_root loss/main_process_killed loss/frozen_main_process \
  loss/processes_and_files_that_resist dial/takeover limits/memory limits/tmp limits/processes; do
  not_on_gvisor+="|^TestConformance\$/^${row%/*}\$/^${row#*/}\$"
done

stop() {
  end dockerd "$pidfile" "$socket"
  ip link delete "$bridge" 2>/dev/null || true # it may be gone
}

# run_tests: Docker is the one of start; containerd's driver is told the runtime. Each suite is run though another one failed.
run_tests() {
  local failed=() suite engine
  wrap
  export PATH=${wrapper%/*}:$PATH WORKCELL_TEST_OCI_RUNTIME=runsc
  answers || trap stop EXIT # one that was there stays
  DOCKER_HOST=$(start)
  export DOCKER_HOST
  ENGINES=docker,containerd "$root/hack/images.sh"
  cd "$root"
  for engine in docker containerd; do
    for suite in "./backend/$engine -run ^TestConformance$" ./e2e/conformance ./e2e/hosttools ./e2e/promises; do
      say "--- $suite on $engine"
      # shellcheck disable=SC2086 # the words of a suite
      WORKCELL_TEST_BACKEND=$engine go test -count=1 -timeout 40m -skip "$not_on_gvisor" $suite || failed+=("$suite on $engine")
    done
  done
  [ ${#failed[@]} -eq 0 ] || die "failed on gVisor: ${failed[*]}"
}

answers() { DOCKER_HOST=unix://$socket engine_answers; }

# start: it shares the system's containerd and nothing else.
start() {
  [ "$(id -u)" = 0 ] || die "dockerd needs root"
  if ! answers; then
    wrap
    if ! command -v ip >/dev/null 2>&1; then need_packages "gVisor's engine" iproute2; fi
    install -d -m 0700 "$state" "$data"
    printf "{}" >"$data/none.json"
    # A bridge of its own: with none at all dockerd deletes docker0, which is that of the engine beside it.
    ip link add "$bridge" type bridge 2>/dev/null || ip link show "$bridge" >/dev/null
    ip address replace 172.30.254.1/24 dev "$bridge"
    setsid nohup dockerd --host "unix://$socket" --pidfile "$pidfile" --data-root "$data/root" --exec-root "$state/exec" \
      --containerd "$containerd_socket" --containerd-namespace gvisor-moby --containerd-plugins-namespace gvisor-plugins.moby \
      --bridge "$bridge" --iptables=false --config-file "$data/none.json" --add-runtime "runsc=$wrapper" --default-runtime runsc \
      >"$log" 2>&1 </dev/null 3>&- 4>&- 9>&- &
    local pid=$! deadline=$((SECONDS + 60))
    until answers; do
      if ! kill -0 $pid 2>/dev/null || [ $SECONDS -ge $deadline ]; then
        tail -n 10 "$log" >&2
        kill "$pid" 2>/dev/null || true
        ip link delete "$bridge" 2>/dev/null || true
        die "dockerd did not start" "its log is $log"
      fi
      sleep 0.1
    done
  fi
  printf 'unix://%s\n' "$socket"
}

main "$@"
