# shellcheck shell=bash
# Shared by the scripts in this folder; source it, do not run it.
# Works in a shell without HOME and with a bare PATH.

if [ -z "${HOME:-}" ]; then
  HOME=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6)
  export HOME=${HOME:-/root}
fi
export PATH="${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
if ! command -v go >/dev/null 2>&1 && [ -x /usr/local/go/bin/go ]; then
  export PATH="/usr/local/go/bin:$PATH"
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # for the scripts
cache=${XDG_CACHE_HOME:-$HOME/.cache}/workcell

say() { printf '%s\n' "$*" >&2; }

# die MESSAGE [HINT]
die() {
  printf 'error: %s\n' "$1" >&2
  if [ -n "${2:-}" ]; then printf 'hint: %s\n' "$2" >&2; fi
  exit 1
}

need_go() {
  command -v go >/dev/null 2>&1 ||
    die "Go is not installed" "install Go $(sed -n 's/^go //p' "$root/go.mod") or newer from https://go.dev/dl/"
}

is_debian() { [ -r /etc/debian_version ] && command -v apt-get >/dev/null 2>&1; }

# need_packages WHY PACKAGE...: installs those that are missing, and only those.
need_packages() {
  local why=$1 missing=() p
  shift
  for p in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || die "$why needs the packages: ${missing[*]}" "as root: apt-get install ${missing[*]}"
  say "installing ${missing[*]} (for $why)"
  local log
  log=$(mktemp)
  if ! install_packages "${missing[@]}" >"$log" 2>&1; then
    # No package lists yet, or lists older than the archive.
    DEBIAN_FRONTEND=noninteractive apt-get update -qq >"$log" 2>&1 || say "warning: apt-get update reported errors"
    if ! install_packages "${missing[@]}" >>"$log" 2>&1; then
      tail -n 20 "$log" >&2
      rm -f "$log"
      die "apt-get could not install ${missing[*]}"
    fi
  fi
  rm -f "$log"
}

install_packages() {
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 "$@" </dev/null
}

# bounded SECONDS COMMAND...: some docker commands wait for a hung engine for
# ever, and some of those do not end on TERM. The command stays in the process
# group that supervise ends. (macOS has no timeout command.)
bounded() {
  local seconds=$1
  shift
  if command -v timeout >/dev/null 2>&1; then
    timeout --foreground -k 1 "$seconds" "$@"
  else
    "$@"
  fi
}

# use_docker_context: programs read DOCKER_HOST only; the docker command may
# have been told of another engine by `docker context use`.
use_docker_context() {
  [ -z "${DOCKER_HOST:-}" ] && command -v docker >/dev/null 2>&1 || return 0
  local host
  host=$(bounded 5 docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null) || return 0
  case $host in
    "" | unix:///var/run/docker.sock | npipe:*) ;;
    *) export DOCKER_HOST=$host ;;
  esac
}

# working_docker prints the docker command that gets an answer from the engine.
# There may be several, and the first on the PATH may be too new or too old.
working_docker() {
  local d
  while IFS= read -r d; do
    if bounded 10 "$d" version --format '{{.Server.Version}}' >/dev/null 2>&1; then
      printf '%s\n' "$d"
      return
    fi
  done < <(type -ap docker | xargs -r -n1 readlink -f | awk '!seen[$0]++')
  return 1
}

engine_answers() { working_docker >/dev/null; }

containerd_socket=${CONTAINERD_ADDRESS:-/run/containerd/containerd.sock}
containerd_socket=${containerd_socket#unix://}

# containerd_answers [SOCKET]
containerd_answers() {
  local socket=${1:-$containerd_socket}
  [ -S "$socket" ] && bounded 5 ctr --address "$socket" version >/dev/null 2>&1
}

# supervise COMMAND...: does the work of a script in a process group, which INT, TERM and HUP end whole. Of work that fails or is
# interrupted, start_service ends what it started. Then come the commands of at_exit, the last one first.
supervise() {
  local work
  GOTMPDIR=$(mktemp -d) # go leaves files when it is ended
  export GOTMPDIR
  trap 'rm -rf "$GOTMPDIR"' EXIT
  set -m # a group
  (
    set +m
    trap 'finish $?' EXIT
    trap 'exit 130' INT TERM HUP
    "$@"
  ) </dev/null &
  work=$!
  set +m
  trap 'end_work $work 130' INT
  trap 'end_work $work 143' TERM
  trap 'end_work $work 129' HUP
  wait $work || exit
}

started=() # pid files
exit_commands=()

# at_exit COMMAND: $code is the exit status of the work.
at_exit() { exit_commands=("$1" ${exit_commands[@]+"${exit_commands[@]}"}); }

finish() {
  local code=$1 c
  set +e
  trap '' INT TERM HUP
  if [ "$code" -ne 0 ]; then
    end_jobs
    for c in ${started[@]+"${started[@]}"}; do end_pid "$(cat "$c")" TERM && rm -f "$c"; done
  fi
  for c in ${exit_commands[@]+"${exit_commands[@]}"}; do eval "$c"; done
  exit "$code"
}

# end_jobs ends what works in the background, and waits for it. Daemons have left the group.
end_jobs() {
  local job group self
  self=$(exec sh -c 'echo $PPID') # bash 3.2 has no BASHPID
  kill -TERM 0
  for job in $(jobs -p); do
    group=$({ if [ -d /proc/self ]; then sed 's/.*) //' "/proc/$job/stat" | cut -d' ' -f3; else ps -o pgid= -p "$job"; fi; } 2>/dev/null)
    if [ "${group// /}" = "$self" ]; then wait "$job"; fi
  done
}

# end_work PID STATUS: programs have a minute to end. Some remove what they made.
end_work() {
  trap '' INT TERM HUP
  kill -TERM -- "-$1" 2>/dev/null || true
  for _ in $(seq 600); do
    group_runs "$1" || break
    sleep 0.1
  done
  kill -KILL -- "-$1" 2>/dev/null || true
  exit "$2"
}

group_runs() {
  { if [ -d /proc/self ]; then cat /proc/[0-9]*/stat | sed 's/.*) //'; else ps -A -o stat= -o ppid= -o pgid=; fi || true; } 2>/dev/null |
    awk -v group="$1" '$3 == group && $1 !~ /^Z/ {some = 1} END {exit !some}'
}

# lock FILE [-n]: holds a lock until this shell ends; with -n it fails when
# another has it. What outlives the shell must be started with 8>&-.
lock() {
  command -v flock >/dev/null 2>&1 || return 0
  mkdir -p "${1%/*}"
  exec 8>"$1"
  flock "${@:2}" 8
}

# start_service NAME LOG PIDFILE ANSWERS COMMAND...: starts a daemon and waits until the command ANSWERS succeeds.
start_service() {
  launch "$2" "$3" "${@:5}"
  started+=("$3")
  await_service "$1" "$2" "$3" "$4"
}

# launch LOG PIDFILE COMMAND...: open files of the script must not live on in the daemon: its output, and locks.
launch() {
  local session=()
  mkdir -p "${1%/*}" "${2%/*}"
  if command -v setsid >/dev/null 2>&1; then session=(setsid); fi
  ${session[@]+"${session[@]}"} nohup "${@:3}" >>"$1" 2>&1 </dev/null 3>&- 4>&- 8>&- 9>&- &
  echo $! >"$2"
}

# await_service NAME LOG PIDFILE ANSWERS: without a pid file the daemon is systemd's.
await_service() {
  local deadline=$((SECONDS + 120))
  until "$4"; do
    if { [ -n "$3" ] && ! kill -0 "$(cat "$3")" 2>/dev/null; } || [ $SECONDS -ge $deadline ]; then
      if [ -s "$2" ]; then tail -n 20 "$2" >&2; fi
      die "$1 did not start" "${2:+its log is $2}"
    fi
    sleep 0.1
  done
}

# runs PIDFILE WORD: the process of the file is the one whose command line has the word, not one that got an old number.
runs() {
  local pid
  pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] || return 1
  if [ -r "/proc/$pid/cmdline" ]; then
    tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF -e "$2"
  else
    ps -o command= -p "$pid" 2>/dev/null | grep -qF -e "$2"
  fi
}

# end NAME PIDFILE WORD [SIGNAL]: ends a process that runs.
end() {
  if runs "$2" "$3"; then
    end_pid "$(cat "$2")" "${4:-TERM}"
    say "$1 ended"
  else
    say "$1 was not running"
  fi
  rm -f "$2"
}

# end_pid PID SIGNAL: kills what does not end within ten seconds.
end_pid() {
  kill "-$2" "$1" 2>/dev/null || return 0
  for _ in $(seq 100); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  kill -KILL "$1" 2>/dev/null || true
}
