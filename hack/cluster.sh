#!/usr/bin/env bash
# A real Kubernetes of one node for the tests, built from Go modules: etcd, API server, controller manager, scheduler and
# kubelet on this machine's loopback, with the system's containerd and runc. It has a containerd of its own, and leaves the
# system's alone.
#
#   cluster.sh path     build it once (some ten minutes on 2 cores)
#   cluster.sh up       start what does not run, load the images of the tests, print the path of the kubeconfig
#   cluster.sh status   report whether it runs
#   cluster.sh left     list what is in it that tests made
#   cluster.sh down     end what up started, and remove what it made
#   cluster.sh end NAME, cluster.sh start NAME    one part alone: kube-apiserver, kubelet, ...
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

module=$root/e2e/cluster
data=/var/lib/workcell/cluster
state=/run/workcell/cluster # short: paths of sockets are limited
pki=$data/pki
node=127.0.0.1 # the kubelet refuses loopback as an address, not as a name
group=workcell-cluster
pods=10.213.0.0/24
service=10.214.0.1    # of the API server, which is the first address of services
storage=workcell-test # the class of volumes
api=21443 etcd=21379 etcd_peer=21380
parts="containerd etcd kube-apiserver kube-controller-manager kube-scheduler kubelet addons"

main() {
  local part
  [ "$(uname -s)" = Linux ] || die "the test cluster runs on Linux only"
  case ${1:-} in
    path) for part in kube addons; do tool "$part"; done ;;
    up) up ;;
    status) ready_kubelet && printf 'the test cluster runs: %s\n' "$data/kubeconfig" ;;
    left) left ;;
    down) down ;;
    start)
      at_exit '[ "$code" -eq 0 ] || end_part "$part"'
      part=$2
      programs
      start_part "$part"
      wait_part "$part"
      ;;
    end) end_part "$2" ;;
    *) die "usage: cluster.sh path|up|status|left|down|start NAME|end NAME" ;;
  esac
}

tool() { "$root/hack/tool.sh" "$1"; }

up() {
  [ "$(id -u)" = 0 ] || die "the test cluster needs root"
  need_packages "the test cluster" containerd runc containernetworking-plugins openssl curl iproute2 iptables
  programs
  lock "$cache/cluster.lock"
  if [ ! -e "$state" ]; then at_exit '[ "$code" -eq 0 ] || down'; fi
  install -d -m 0700 "$state" "$data" "$pki" "$data/log" "$data/cni"
  certificates
  for part in $parts; do
    start_part "$part"
    if [ "$part" = containerd ]; then
      wait_part containerd
      images
    fi
    if [ "$part" = kube-apiserver ]; then
      wait_part kube-apiserver
      storage_class
    fi
  done
  wait_part kubelet
  printf '%s\n' "$data/kubeconfig"
}

# certificates: one authority, and with it certificates for the API server, the kubelet and the user.
certificates() {
  if [ -e "$pki/done" ] && openssl x509 -checkend 86400 -noout -in "$pki/admin.crt" >/dev/null; then return; fi
  (
    cd "$pki"
    authority
    sign apiserver /CN=kube-apiserver "subjectAltName=IP:127.0.0.1,IP:$service,DNS:localhost,DNS:kubernetes.default.svc"
    sign kubelet "/CN=$node" "subjectAltName=IP:127.0.0.1"
    sign node "/O=system:nodes/CN=system:node:$node" "extendedKeyUsage=clientAuth"
    sign admin "/O=system:masters/CN=admin" "extendedKeyUsage=clientAuth"
    openssl ecparam -name prime256v1 -genkey -noout -out sa.key
    openssl ec -in sa.key -pubout -out sa.pub
    touch "done"
  ) 2>"$data/log/pki.log"
  kubeconfig admin >"$data/kubeconfig"
  kubeconfig node >"$data/node.kubeconfig"
}

authority() {
  openssl ecparam -name prime256v1 -genkey -noout -out ca.key
  openssl req -x509 -new -key ca.key -subj /CN=workcell-cluster -days 30 -out ca.crt
}

# sign NAME SUBJECT EXTENSIONS
sign() {
  openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
  openssl req -new -key "$1.key" -subj "$2" |
    openssl x509 -req -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile <(printf '%s' "$3") -out "$1.crt"
}

kubeconfig() {
  cat <<END
apiVersion: v1
kind: Config
clusters: [{name: workcell-cluster, cluster: {server: "https://127.0.0.1:$api", certificate-authority: $pki/ca.crt}}]
users: [{name: $1, user: {client-certificate: $pki/$1.crt, client-key: $pki/$1.key}}]
contexts: [{name: workcell-cluster, context: {cluster: workcell-cluster, user: $1}}]
current-context: workcell-cluster
END
}

programs() { kube=$(tool kube) addons=$(tool addons); }

# start_part NAME: one of the programs, unless it runs.
start_part() {
  local command
  if runs "$state/$1.pid" "$data"; then return; fi
  say "starting $1"
  case $1 in
    # Each pod has a link of its own to the node, so that all of its packets come by the rules of addons, which are for IPv4: it
    # has no other address.
    containerd) config containerd.toml "$data" && config bridge.conflist "$data/cni" ;;
    kubelet) control_groups && config kubelet.yaml "$data" ;;
    addons) ip address replace "$service/32" dev lo ;; # not every kernel has links of the kind dummy
  esac
  mapfile -t command < <("command_${1//-/_}")
  launch "$data/log/$1.log" "$state/$1.pid" "${command[@]}"
}

# config FILE FOLDER
config() {
  sed "s,@data@,$data,; s,@state@,$state,; s,@pods@,$pods,; s,@group@,$group," "$module/config/$1" >"$2/$1"
}

# Each of these prints a program and its arguments, one a line.
command_containerd() { printf '%s\n' containerd --config "$data/containerd.toml"; }

command_etcd() {
  printf '%s\n' "$kube" etcd --data-dir "$data/etcd" --name cluster --unsafe-no-fsync --log-level warn \
    --listen-client-urls "http://127.0.0.1:$etcd" --advertise-client-urls "http://127.0.0.1:$etcd" \
    --listen-peer-urls "http://127.0.0.1:$etcd_peer" --initial-advertise-peer-urls "http://127.0.0.1:$etcd_peer" \
    --initial-cluster "cluster=http://127.0.0.1:$etcd_peer"
}

# Real TLS and access control; without endpoints of its own, because those of a service cannot be on loopback. Addons lead
# there nevertheless.
command_kube_apiserver() {
  printf '%s\n' "$kube" kube-apiserver --etcd-servers "http://127.0.0.1:$etcd" --bind-address 127.0.0.1 --advertise-address 127.0.0.1 \
    --endpoint-reconciler-type none --secure-port "$api" --service-cluster-ip-range "${service%.*}.0/24" \
    --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" --client-ca-file "$pki/ca.crt" \
    --kubelet-client-certificate "$pki/admin.crt" --kubelet-client-key "$pki/admin.key" \
    --kubelet-certificate-authority "$pki/ca.crt" --kubelet-preferred-address-types Hostname \
    --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$pki/sa.pub" \
    --service-account-signing-key-file "$pki/sa.key" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --allow-privileged --anonymous-auth=false --profiling=false --shutdown-delay-duration 0s
}

command_kube_controller_manager() {
  printf '%s\n' "$kube" kube-controller-manager --kubeconfig "$data/kubeconfig" --bind-address 127.0.0.1 --secure-port 21257 \
    --leader-elect=false --service-account-private-key-file "$pki/sa.key" --root-ca-file "$pki/ca.crt" \
    --use-service-account-credentials=false --kube-api-qps 200 --kube-api-burst 400
}

command_kube_scheduler() {
  printf '%s\n' "$kube" kube-scheduler --kubeconfig "$data/kubeconfig" --bind-address 127.0.0.1 --secure-port 21259 \
    --leader-elect=false --kube-api-qps 200 --kube-api-burst 400
}

command_kubelet() {
  printf '%s\n' "$kube" kubelet --config "$data/kubelet.yaml" --kubeconfig "$data/node.kubeconfig" --hostname-override "$node" \
    --root-dir "$data/kubelet" --cert-dir "$data/kubelet/pki" --v 1
}

command_addons() {
  printf '%s\n' "$addons" --kubeconfig "$data/kubeconfig" --node "$node" --pods "$pods" --service "$service:443" --server "127.0.0.1:$api" \
    --storage-class "$storage" --volumes "$data/volumes"
}

# hierarchies lists those of the control groups, which systems without systemd may have several of.
hierarchies() { awk '$3 == "cgroup" || $3 == "cgroup2" {print $2}' /proc/mounts; }

control_groups() {
  local h
  while IFS= read -r h; do
    mkdir -p "$h/$group" 2>/dev/null || continue
    if [ -e "$h/$group/cpuset.cpus" ] && [ -e "$h/cpuset.mems" ]; then
      cat "$h/cpuset.cpus" >"$h/$group/cpuset.cpus"
      cat "$h/cpuset.mems" >"$h/$group/cpuset.mems"
    fi
  done < <(hierarchies)
}

ctr_() { ctr --address "$state/containerd.sock" -n k8s.io "$@"; }

# call ARGUMENT...: of the API server, without kubectl.
call() { curl -sf --max-time 10 --cacert "$pki/ca.crt" --cert "$pki/admin.crt" --key "$pki/admin.key" "$@"; }

# get PATH
get() { call "https://127.0.0.1:$api$1"; }

# storage_class makes the class of the volumes that addons provides.
storage_class() {
  get "/apis/storage.k8s.io/v1/storageclasses/$storage" >/dev/null ||
    call -X POST -H 'Content-Type: application/json' "https://127.0.0.1:$api/apis/storage.k8s.io/v1/storageclasses" \
      -d '{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "'"$storage"'"}, "provisioner": "workcell.test/directories"}' >/dev/null
}

ready_containerd() { containerd_answers "$state/containerd.sock"; }
ready_kube_apiserver() { get /readyz >/dev/null; }
ready_kubelet() {
  [[ "$(get "/api/v1/nodes/$node" | tr -d ' \n')" == *'"status":"True"'*'"type":"Ready"'* || "$(get "/api/v1/nodes/$node" | tr -d ' \n')" == *'"type":"Ready","status":"True"'* ]] &&
    get /api/v1/namespaces/default/serviceaccounts/default >/dev/null
}

# wait_part NAME: until it answers.
wait_part() {
  local answers=ready_${1//-/_}
  if declare -F "$answers" >/dev/null; then await_service "$1 of the test cluster" "$data/log/$1.log" "$state/$1.pid" "$answers"; fi
}

# images: what pods are made of, in the namespace where the kubelet looks.
images() {
  if ! ctr_ images ls -q | grep -x localhost/pause:1 >/dev/null; then pause | ctr_ images import - >/dev/null; fi
  (cd "$root" && go run ./e2e/images/cmd/mkimages -cache "$cache/images" -engine containerd -address "$state/containerd.sock" -namespace k8s.io -guest) >&2
}

# pause prints the image of the process that holds a pod's namespaces.
pause() (
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  cd "$module"
  CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$dir/pause" ./pause >&2
  cd "$dir"
  tar --sort=name --owner=0 --group=0 --mtime=@0 -cf layer.tar pause
  printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/pause"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(go env GOARCH)" "$(sha256sum layer.tar | cut -d' ' -f1)" >config.json
  printf '[{"Config":"config.json","RepoTags":["localhost/pause:1"],"Layers":["layer.tar"]}]' >manifest.json
  tar -cf - manifest.json config.json layer.tar
)

# left lists what tests made: objects, what runs, and images besides those of images.
left() {
  ready_kubelet 2>/dev/null || die "the test cluster does not answer"
  "$(tool addons)" --kubeconfig "$data/kubeconfig" --left
  ctr_ tasks ls -q | sed 's/^/task /'
  ctr_ images ls -q | grep -vE '^(localhost/pause:|docker\.io/workcell/|sha256:)' | sed 's/^/image /' || true
}

end_part() {
  if [ "$1" = kube-apiserver ] && runs "$state/$1.pid" "$data"; then kill -KILL "$(cat "$state/$1.pid")"; fi # told to end, it waits a minute for its clients
  end "$1" "$state/$1.pid" "$data"
}

down() {
  local part m h
  for part in addons kubelet kube-scheduler kube-controller-manager kube-apiserver etcd; do end_part $part; done
  if ready_containerd; then
    ctr_ tasks ls -q | while IFS= read -r t; do
      ctr_ tasks rm -f "$t" || true # it may go with another one of its pod
      ctr_ containers rm "$t" || true
    done >/dev/null 2>&1
  fi
  end_part containerd
  awk -v a="$data/" -v b="$state/" 'index($2, a) == 1 || index($2, b) == 1 {print $2}' /proc/mounts | sort -r | while IFS= read -r m; do umount -l "$m"; done
  packet_rules_gone
  # A pod that ended with its node keeps its link, and the next one that gets its address is not reached.
  ip -4 route show root "$pods" | awk '{print $3}' | while IFS= read -r l; do ip link delete "$l" || true; done
  ip address del "$service/32" dev lo 2>/dev/null || true
  while IFS= read -r h; do
    find "$h/$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
  done < <(hierarchies)
  # The kubelet makes these whatever its flags say; empty ones go.
  rm -f /var/lib/kubelet/device-plugins/kubelet.sock
  find /var/log/containers /var/log/pods -type l -lname "$data/*" -delete 2>/dev/null || true
  find /var/lib/kubelet /usr/libexec/kubernetes /var/log/containers -depth -type d -empty -delete 2>/dev/null || true
  rm -rf "$data" "$state"
}

# packet_rules_gone removes the rules of addons.
packet_rules_gone() {
  local from c
  for from in FORWARD INPUT; do
    while iptables -w -D $from -j WORKCELL-CLUSTER 2>/dev/null; do :; done
  done
  for c in -F -X; do # references first
    iptables -w -S 2>/dev/null | sed -n 's/^-N \(WORKCELL-CLUSTER\|WCC-[A-Z]-[0-9]*\)$/\1/p' | while IFS= read -r from; do iptables -w $c "$from"; done
  done
}

supervise main "$@"
