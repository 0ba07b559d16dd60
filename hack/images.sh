#!/usr/bin/env bash
# Brings the sandbox images into the engines: those that ENGINES names, else
# those that answer.
# usage: [ENGINES=docker,containerd] images.sh [-official | -agents] [-force]   (see e2e/images/cmd/mkimages)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

main() {
  need_go
  use_docker_context
  local engines=${ENGINES:-}
  if [ -z "$engines" ]; then
    if engine_answers; then engines=docker; fi
    if containerd_answers "$containerd_socket"; then engines=${engines:+$engines,}containerd; fi
    [ -n "$engines" ] || die "no container engine answers" "make engine"
  fi
  cd "$root"
  go run ./e2e/images/cmd/mkimages -cache "$cache/images" -engine "$engines" -address "$containerd_socket" "$@"
}

supervise main "$@"
