#!/usr/bin/env bash
# Helm, built once from the version that hack/helm/go.mod pins.
#
#   helm.sh path         print the path of the program
#   helm.sh manifests    write deploy/kubernetes/workcell.yaml anew: what the chart says with its own values
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

module=$root/hack/helm

main() {
  case ${1:-} in
    path) program ;;
    manifests) manifests >"$root/deploy/kubernetes/workcell.yaml.new" && mv "$root/deploy/kubernetes/workcell.yaml.new" "$root/deploy/kubernetes/workcell.yaml" ;;
    *) die "usage: helm.sh path|manifests" ;;
  esac
}

# program prints the path of the binary, which it makes first where needed.
program() {
  need_go
  local version file
  version=$(module_version helm.sh/helm/v4 "$module/go.mod")
  file=$cache/helm/helm-$version-$(go env GOOS)-$(go env GOARCH)
  once "$file" compile "$version" "$file"
  printf '%s\n' "$file"
}

compile() {
  say "building Helm $1 from its Go module: takes some minutes, once"
  build_module "$module" "$2" -trimpath -buildvcs=false \
    -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$1" helm.sh/helm/v4/cmd/helm || die "Helm could not be built"
}

manifests() {
  printf '%s\n' "# Made from deploy/helm/workcell by hack/helm.sh manifests: kubectl apply -n workcell -f it."
  "$(program)" template workcell --namespace workcell "$root/deploy/helm/workcell" 2>/dev/null
}

main "$@"
