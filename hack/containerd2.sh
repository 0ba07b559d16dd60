#!/usr/bin/env bash
# A current containerd, built from its Go module, for the tests: what Debian
# has is containerd 1.6. It is a daemon of its own, with its own root, state and
# socket, and leaves the system's alone.
#
#   containerd2.sh path     build it once (2 minutes on 2 cores), print the folder of its programs
#   containerd2.sh start    run it in the background, print its socket
#   containerd2.sh stop     end what start started
#   containerd2.sh status   say whether it answers
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

module=$root/e2e/containerd
base=$cache/containerd2
data=/var/lib/workcell/containerd2
state=/run/workcell/containerd2 # short: paths of sockets are limited
socket=$state/containerd.sock
pidfile=$state/containerd.pid
log=$data/containerd.log

main() {
  [ "$(uname -s)" = Linux ] || die "containerd runs on Linux only"
  case ${1:-} in
    path) programs ;;
    start) start ;;
    stop) end containerd "$pidfile" "$data/config.toml" ;;
    status) status ;;
    *) die "usage: containerd2.sh path|start|stop|status" ;;
  esac
}

# programs prints the folder of the binaries, which it makes first where needed.
programs() {
  need_go
  local version dir
  version=$(module_version github.com/containerd/containerd/v2 "$module/go.mod")
  dir=$base/$version-$(go env GOARCH)
  once "$dir" compile "$version" "$dir"
  printf '%s\n' "$dir"
}

# compile leaves out what no test needs: that halves the time.
compile() {
  local version=$1 dir=$2
  say "building containerd $version from its Go module: takes two minutes, once"
  build_module "$module" "$dir/" -tags "no_cri no_btrfs no_zfs no_devmapper no_tracing no_systemd" \
    -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$version" \
    github.com/containerd/containerd/v2/cmd/containerd github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2 ||
    die "containerd could not be built"
}

start() {
  [ "$(id -u)" = 0 ] || die "containerd needs root"
  if containerd_answers "$socket"; then
    printf '%s\n' "$socket"
    return
  fi
  local dir pid deadline=$((SECONDS + 60))
  dir=$(programs)
  if runs "$pidfile" "$data/config.toml"; then die "a containerd of ours runs and does not answer (pid $(cat "$pidfile"))" "its log is $log"; fi
  install -d -m 0700 "$state" "$data"
  config >"$data/config.toml"
  # Its own shim must be found before the system's. No file descriptor of ours
  # may live on in the daemon.
  PATH=$dir:$PATH setsid nohup "$dir/containerd" --config "$data/config.toml" >"$log" 2>&1 </dev/null 3>&- 4>&- 9>&- &
  pid=$!
  echo $pid >"$pidfile"
  until containerd_answers "$socket"; do
    if ! kill -0 $pid 2>/dev/null || [ $SECONDS -ge $deadline ]; then
      tail -n 10 "$log" >&2
      kill "$pid" 2>/dev/null || true
      die "containerd did not start" "its log is $log"
    fi
    sleep 0.1
  done
  printf '%s\n' "$socket"
}

# config: nothing of it lies in the system's own folders.
config() {
  cat <<EOF
version = 3
root = "$data/root"
state = "$state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]

[grpc]
address = "$socket"
EOF
}

status() {
  containerd_answers "$socket" || die "no containerd of ours answers" "hack/containerd2.sh start"
  say "containerd answers on $socket"
}

main "$@"
