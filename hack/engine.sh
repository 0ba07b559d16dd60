#!/usr/bin/env bash
# Makes sure that container engines answer. One that runs is never touched.
# Without one: on Debian, as root, it comes from Debian's packages and is
# started, by systemd where that runs and else by hand.
#
#   engine.sh [docker] [containerd]   default: Docker, and containerd where it
#                                     can be had without asking for more
#   engine.sh stop [docker] [containerd]   end what this script started by hand; default: both
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

logs=/var/log/workcell
pids=/run/workcell
system_socket=/run/containerd/containerd.sock

main() {
  local engine
  if [ "${1:-}" = stop ]; then
    case "${*:2}" in "" | *docker*) end dockerd "$pids/dockerd.pid" dockerd ;; esac
    case "${*:2}" in "" | *containerd*) end containerd "$pids/containerd.pid" containerd ;; esac
    return
  fi
  if [ $# -eq 0 ]; then
    set -- docker
    if containerd_answers || { [ "$(uname -s)" = Linux ] && is_debian && [ "$(id -u)" = 0 ]; }; then set -- docker containerd; fi
  fi
  for engine in "$@"; do
    case $engine in docker | containerd) ;; *) die "usage: engine.sh [docker] [containerd]" ;; esac
  done
  for engine in "$@"; do "ensure_$engine"; done
}

ensure_docker() {
  use_docker_context
  if engine_answers; then
    revive_containerd
  else
    case ${DOCKER_HOST:-unix:///var/run/docker.sock} in
      unix:///var/run/docker.sock | unix:///run/docker.sock) ;;
      *) die "no engine answers at DOCKER_HOST=$DOCKER_HOST" "start that engine, or unset DOCKER_HOST" ;;
    esac
    if ! is_debian; then
      die "no container engine is available" "install and start Docker (Docker Desktop, Colima, or your distribution's docker package)"
    fi
    if [ "$(id -u)" != 0 ]; then
      die "no container engine is available for user $(id -un)" \
        "run 'make engine' as root, or: apt-get install docker.io, start it, and join the group 'docker'"
    fi
    if command -v dockerd >/dev/null 2>&1 && command -v containerd >/dev/null 2>&1; then # of other packages (docker-ce) is as good
      need_packages "the container engine" iptables ca-certificates
    else
      need_packages "the container engine" docker.io containerd runc iptables ca-certificates
    fi
    by_systemd docker engine_answers || { start_containerd && start_dockerd; }
  fi
  "$(working_docker)" version \
    --format 'engine {{.Server.Version}} (API {{.Server.APIVersion}}, {{.Server.Os}}/{{.Server.Arch}}) answers'
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
    by_systemd containerd containerd_answers || start_containerd
  fi
  bounded 10 ctr --address "$containerd_socket" version |
    awk '/^Server/ {server = 1} server && /Version:/ {print "containerd " $2 " answers"}'
}

# by_systemd UNIT ANSWERS fails where systemd does not run.
by_systemd() {
  [ -d /run/systemd/system ] || return 1
  if ! systemctl start "$1"; then
    journalctl -u "$1" -n 20 --no-pager >&2 || true
    die "systemd could not start $1"
  fi
  await_service "$1" "" "" "$2"
}

# revive_containerd: an engine that we started answers without its containerd,
# but runs nothing. dockerd finds a new one by itself.
revive_containerd() {
  if [ "$(id -u)" = 0 ] && [ -e "$pids/containerd.pid" ] && runs "$pids/dockerd.pid" dockerd; then start_containerd; fi
}

start_containerd() {
  if system_containerd_answers; then return; fi
  if runs "$pids/containerd.pid" containerd; then
    await_service containerd "$logs/containerd.log" "$pids/containerd.pid" system_containerd_answers
  else
    say "starting containerd"
    start_service containerd "$logs/containerd.log" "$pids/containerd.pid" system_containerd_answers containerd
  fi
}

system_containerd_answers() { containerd_answers "$system_socket"; }

# start_dockerd: dockerd refuses to start while its pid file names any living process, which after a reboot is another one.
start_dockerd() {
  if runs /var/run/docker.pid dockerd; then
    say "dockerd runs already (pid $(cat /var/run/docker.pid)): waiting for its answer"
    await_service dockerd "" /var/run/docker.pid engine_answers
    return
  fi
  rm -f /var/run/docker.pid
  say "starting dockerd"
  start_service dockerd "$logs/dockerd.log" "$pids/dockerd.pid" engine_answers dockerd --containerd "$system_socket"
}

supervise main "$@"
