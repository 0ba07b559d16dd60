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
# ever, and some of those do not end on TERM. (macOS has no timeout command.)
bounded() {
  local seconds=$1
  shift
  if command -v timeout >/dev/null 2>&1; then
    timeout -k 1 "$seconds" "$@"
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

# module_version MODULE GO.MOD: the version of a module that a go.mod names.
module_version() {
  local version
  version=$(sed -n "s,^[[:space:]]*$1 \\(v[^ ]*\\).*,\\1,p" "$2")
  [ -n "$version" ] || die "$2 names no version of $1"
  printf '%s\n' "$version"
}

# once PATH COMMAND...: runs a command that makes PATH unless it is there. Of two at once the second waits, and finds it.
once() {
  local path=$1
  shift
  [ ! -e "$path" ] || return 0
  mkdir -p "${path%/*}"
  if command -v flock >/dev/null 2>&1; then
    exec 9>"$path.lock"
    if ! flock -n 9; then
      say "waiting for the process that makes ${path##*/}"
      flock 9
    fi
  fi
  [ -e "$path" ] || "$@"
}

# build_module DIR FILE ARGUMENT...: go build in a module of its own. A FILE that ends with a slash is a directory for
# several programs. It is there whole or not at all; an interrupt leaves nothing.
build_module() (
  file=${2%/} new=${2%/}.new.$$ out=${2%/}.new.$$${2#"${2%/}"}
  trap 'rm -rf "$new"' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  cd "$1" || exit
  shift 2
  CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off go build -o "$out" "$@" >&2 && mv "$new" "$file"
)

# lock FILE [-n]: holds a lock until this shell ends; with -n it fails when
# another has it. What outlives the shell must be started with 8>&-.
lock() {
  command -v flock >/dev/null 2>&1 || return 0
  mkdir -p "${1%/*}"
  exec 8>"$1"
  flock "${@:2}" 8
}

# runs PIDFILE WORD: the process of the file is the one whose command line has the word, not one that got an old number.
runs() {
  local pid
  pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] || return 1
  if [ -r "/proc/$pid/cmdline" ]; then
    tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF "$2"
  else
    ps -o command= -p "$pid" 2>/dev/null | grep -qF "$2"
  fi
}

# end NAME PIDFILE WORD: ends a process that runs.
end() {
  local pid
  if ! runs "$2" "$3"; then
    say "no $1 of ours runs"
    rm -f "$2"
    return
  fi
  pid=$(cat "$2")
  kill "$pid"
  for _ in $(seq 100); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  if kill -0 "$pid" 2>/dev/null; then kill -KILL "$pid"; fi
  rm -f "$2"
  say "$1 ended"
}
