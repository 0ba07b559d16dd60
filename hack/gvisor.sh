#!/usr/bin/env bash
# gVisor's OCI runtime, runsc, which gives each sandbox a separate kernel. Needs root.
#
#   gvisor.sh path       build it once (some minutes on 2 cores), print the path of a program that adds the flags sandboxes need
#   gvisor.sh install    put that into the PATH, where containerd's driver finds it, and register it with this machine's Docker.
#                        An existing runsc is left alone.
#   gvisor.sh test       the suites of drivers, sessions, promises and host tools with all their sandboxes on it. They use a separate
#                        engine, and install nothing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

library=/usr/local/libexec/workcell
config=/etc/docker/daemon.json

main() {
  [ "$(uname -s)" = Linux ] || die "gVisor runs on Linux only"
  [ "$(id -u)" = 0 ] || die "gVisor needs root"
  case ${1:-} in
    path) path ;;
    install) install_runsc ;;
    test) run_tests ;;
    *) die "usage: gvisor.sh path|install|test" ;;
  esac
}

# path: every user must be able to read the program. What the image's file system gets lies in the container's own layer, where it
# outlives a stop and an environment is kept from, and the system calls are filtered inside as well.
path() {
  local file kept
  file=$("$root/hack/tool.sh" runsc)
  kept=$library/${file##*/}
  if [ ! -e "$kept" ]; then
    install -D -m 0755 "$file" "$kept.new.$$"
    mv "$kept.new.$$" "$kept"
  fi
  printf '#!/bin/sh\nexec %s --overlay2=none "$@"\n' "$kept" >"$library/runsc.new.$$"
  chmod 0755 "$library/runsc.new.$$"
  mv "$library/runsc.new.$$" "$library/runsc"
  printf '%s\n' "$library/runsc"
}

install_runsc() {
  local there
  if ! there=$(command -v runsc); then
    there=/usr/local/bin/runsc
    ln -s "$(path)" "$there"
  fi
  use_docker_context
  case ${DOCKER_HOST:-unix:///var/run/docker.sock} in # the engine of this machine
    unix:///var/run/docker.sock | unix:///run/docker.sock) if engine_answers; then register "$there"; fi ;;
  esac
  say "$("$there" --version | head -n 1) is $there"
}

# No pipe: a grep that has seen enough ends the program before it, which pipefail takes for a failure.
has_runsc() { [[ " $("$(working_docker)" info --format '{{range $name, $_ := .Runtimes}}{{$name}} {{end}}')" == *" runsc "* ]]; }

# stock: Docker has the runtimes that it comes with. When it reloads, what its flags name is lost, and without its default
# runtime Docker 20.10 ends.
stock() {
  local r
  for r in $("$(working_docker)" info --format '{{.DefaultRuntime}} {{range $name, $_ := .Runtimes}}{{$name}} {{end}}'); do
    case $r in runc | io.containerd.run*) ;; *) return 1 ;; esac
  done
}

# register tells Docker. An existing configuration is not touched.
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

# Tests of what cannot hold on gVisor, or that look at processes of the machine which are gVisor's own: docs/operations/gvisor.md has the
# promises, this their names.
not_on_gvisor='^Test(LimitsShow|Snapshots|L4Reserved)$|^TestConformance$/^snapshots$'
not_on_gvisor+='|^Test(A1Outside|A6SwapRace|A7DeleteRace|G6Stream|H1Memory|H3Places|H3Root|H9Counters|M4SocketKinds)$'
not_on_gvisor+='|^TestN(4Namespaces|6Mounts|7KernelFiles|9Guest|9SystemCalls|10Limits)$'
for row in isolation/of_the_default_user 'isolation/of_the_guest.s_files' isolation/of_root loss/main_process_killed loss/frozen_main_process \
  loss/processes_and_files_that_resist dial/takeover limits/memory limits/tmp limits/processes; do
  not_on_gvisor+="|^TestConformance\$/^${row%/*}\$/^${row#*/}\$"
done

# run_tests: Docker is the service; containerd's driver is told the runtime. Each suite is run though another one failed.
run_tests() {
  local failed=() suite engine runsc
  runsc=$(path)
  export PATH=${runsc%/*}:$PATH WORKCELL_TEST_OCI_RUNTIME=runsc
  "$root/hack/service.sh" gvisor status >/dev/null 2>&1 || at_exit '"$root/hack/service.sh" gvisor stop' # one that ran stays
  DOCKER_HOST=$("$root/hack/service.sh" gvisor start)
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

supervise main "$@"
