#!/usr/bin/env bash
# Brings the sandbox images into the engine.
# usage: images.sh [-official] [-force] [IMAGE...]   (see images/cmd/mkimages)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_go
use_docker_context
cd "$root"
exec go run ./images/cmd/mkimages -cache "$cache/images" "$@"
