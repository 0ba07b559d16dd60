#!/usr/bin/env bash
# Makes sure that container engines answer. One that runs is never touched.
# Without one: on Debian, as root, it comes from Debian's packages and is
# started, by systemd where that runs and else by hand.
#
#   engine.sh [docker] [containerd] [gvisor]   default: Docker, and the others
#                                              where they can be had without
#                                              asking for more
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

logs=/var/log/workcell
pids=/run/workcell
patience=60 # seconds
system_socket=/run/containerd/containerd.sock

main() {
  local engine
  for engine in "$@"; do
    case $engine in
      docker | containerd | gvisor) ;;
      *) die "usage: engine.sh [docker] [containerd] [gvisor]" ;;
    esac
  done
  if [ $# -gt 0 ]; then
    for engine in "$@"; do "ensure_$engine"; done
    return
  fi
  ensure_docker
  if containerd_answers || { [ "$(uname -s)" = Linux ] && is_debian && [ "$(id -u)" = 0 ]; }; then
    ensure_containerd
  fi
  if [ "$(uname -s)" = Linux ] && is_debian && [ "$(id -u)" = 0 ]; then
    # A wall that nobody asked for by name: the engines are of use without it.
    ensure_gvisor || say "warning: gVisor is not installed; sandboxes with --oci-runtime runsc are refused"
  fi
}

# ensure_gvisor: another OCI runtime for those engines, built from its module.
ensure_gvisor() { "$root/hack/gvisor.sh" install; }

ensure_docker() {
  use_docker_context
  if engine_answers; then
    revive_containerd
    report
    return
  fi
  case ${DOCKER_HOST:-unix:///var/run/docker.sock} in
    unix:///var/run/docker.sock | unix:///run/docker.sock) ;;
    *) die "no engine answers at DOCKER_HOST=$DOCKER_HOST" "start that engine, or unset DOCKER_HOST" ;;
  esac
  if ! is_debian; then
    die "no container engine answers" "install and start Docker (Docker Desktop, Colima, or your distribution's docker package)"
  fi
  if [ "$(id -u)" != 0 ]; then
    die "no container engine answers for user $(id -un)" \
      "run 'make engine' as root, or: apt-get install docker.io, start it, and join the group 'docker'"
  fi
  install_engine
  start_engine
  report
}

# ensure_containerd: the daemon, the plugins that make its networks, and a
# second OCI runtime to choose from.
ensure_containerd() {
  [ "$(uname -s)" = Linux ] || die "containerd runs on Linux only"
  if is_debian && [ "$(id -u)" = 0 ]; then
    if ! command -v containerd >/dev/null 2>&1; then need_packages "containerd" containerd runc; fi
    need_packages "containerd's networks and runtimes" containernetworking-plugins iptables crun
  fi
  if ! containerd_answers; then
    if [ "$containerd_socket" != "$system_socket" ]; then
      die "no containerd answers at CONTAINERD_ADDRESS=$containerd_socket" "start that one, or unset CONTAINERD_ADDRESS"
    fi
    if ! is_debian; then die "no containerd answers" "install and start your distribution's containerd"; fi
    if [ "$(id -u)" != 0 ]; then
      die "no containerd answers for user $(id -un)" "its socket is root's: run this as root"
    fi
    if [ -d /run/systemd/system ]; then
      systemctl start containerd || die "systemd could not start containerd"
      wait_for containerd "" "" containerd_answers
    else
      install -d -m 0755 "$logs" "$pids"
      start_containerd
    fi
  fi
  bounded 10 ctr --address "$containerd_socket" version |
    awk '/^Server/ {server = 1} server && /Version:/ {print "containerd " $2 " answers"}'
}

# revive_containerd: an engine that we started answers without its containerd,
# but runs nothing. dockerd finds a new one by itself.
revive_containerd() {
  local pid
  [ -e "$pids/containerd.pid" ] && [ -e "$pids/dockerd.pid" ] && [ "$(id -u)" = 0 ] || return 0
  pid=$(cat "$pids/dockerd.pid")
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || return 0
  start_containerd
}

# install_engine: an engine of other packages (docker-ce) is as good.
install_engine() {
  if command -v dockerd >/dev/null 2>&1 && command -v containerd >/dev/null 2>&1; then
    need_packages "the container engine" iptables ca-certificates
  else
    need_packages "the container engine" docker.io containerd runc iptables ca-certificates
  fi
}

start_engine() {
  if [ -d /run/systemd/system ]; then
    systemctl start docker || {
      journalctl -u docker -n 20 --no-pager >&2 || true
      die "systemd could not start docker"
    }
    wait_for "dockerd" "" "" engine_answers
    return
  fi
  install -d -m 0755 "$logs" "$pids"
  start_containerd
  start_dockerd
}

start_containerd() {
  if containerd_answers "$system_socket"; then return; fi
  remove_stale_pid "$pids/containerd.pid" containerd
  if [ ! -e "$pids/containerd.pid" ]; then
    # No file descriptor of ours may live on in the daemon: whoever waits for
    # the end of our output would wait for the daemon's end.
    setsid nohup containerd >>"$logs/containerd.log" 2>&1 </dev/null 3>&- 4>&- 9>&- &
    echo $! >"$pids/containerd.pid"
  fi
  wait_for containerd "$(cat "$pids/containerd.pid")" "$logs/containerd.log" system_containerd_answers
}

system_containerd_answers() { containerd_answers "$system_socket"; }

start_dockerd() {
  remove_stale_pid /var/run/docker.pid dockerd
  if [ -e /var/run/docker.pid ]; then
    say "dockerd runs already (pid $(cat /var/run/docker.pid)): waiting for its answer"
    wait_for dockerd "$(cat /var/run/docker.pid)" "" engine_answers
    return
  fi
  setsid nohup dockerd --containerd "$system_socket" \
    >>"$logs/dockerd.log" 2>&1 </dev/null 3>&- 4>&- 9>&- &
  echo $! >"$pids/dockerd.pid"
  wait_for dockerd $! "$logs/dockerd.log" engine_answers
}

# remove_stale_pid FILE NAME: dockerd refuses to start while its pid file names
# any living process, which after a reboot is somebody else's.
remove_stale_pid() {
  local pid
  [ -e "$1" ] || return 0
  pid=$(cat "$1" 2>/dev/null) || pid=
  if [ -z "$pid" ] || [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != "$2" ]; then
    say "removing $1, which a $2 that is gone left behind"
    rm -f "$1"
  fi
}

# wait_for NAME PID LOG CHECK
wait_for() {
  local deadline=$((SECONDS + patience))
  until "$4"; do
    if [ -n "$2" ] && ! kill -0 "$2" 2>/dev/null; then
      give_up "$1 ended right after its start" "$3"
    fi
    [ $SECONDS -lt $deadline ] || give_up "$1 did not answer within $patience s" "$3"
    sleep 0.1
  done
}

give_up() {
  if [ -n "$2" ] && [ -s "$2" ]; then
    say "--- the end of $2"
    tail -n 20 "$2" >&2
    say "---"
  fi
  die "$1"
}

report() {
  "$(working_docker)" version \
    --format 'engine {{.Server.Version}} (API {{.Server.APIVersion}}, {{.Server.Os}}/{{.Server.Arch}}) answers'
}

main "$@"
