#!/usr/bin/env bash
# A real Kubernetes of one node on this machine, with contrib's manifests: docs/development/cluster.md.
#
# `--long` runs it; without, it is skipped. Kubernetes is built from its Go module, once, and kept in
# ~/.cache/isotherm/cluster (or below $XDG_CACHE_HOME): that takes ten minutes or more on two processors.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=v1.34.4
programs=(kubectl kube-scheduler kube-apiserver kube-controller-manager kubelet)
skip() {
    echo "SKIP cluster: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
[[ ${1:-} == --long ]] || skip "it takes ten minutes, and once ten to build Kubernetes: make test-cluster"
((EUID == 0)) || skip "a kubelet takes root"
for command in etcd containerd ctr runc prometheus openssl gcc python3; do
    command -v "$command" >/dev/null || skip "there is no $command: scripts/install-deps cluster"
done
cache=${XDG_CACHE_HOME:-$HOME/.cache}/isotherm/cluster/$version

# build PROGRAM: into the cache. Modules and objects are kept until all programs are there.
build() {
    local made=$cache/go version_in=k8s.io/component-base/version
    mkdir -p "$made/bin"
    [[ -e $made/go.mod ]] || cp tests/cluster/build/go.mod "$made/"
    echo "building $1 ($(date -u +%T) UTC)"
    (
        cd "$made"
        export GOMODCACHE=$made/modules GOCACHE=$made/objects GOPATH=$made/path
        export GOWORK=off GOTOOLCHAIN=local CGO_ENABLED=0
        export GOFLAGS="-mod=mod -modcacherw -buildvcs=false -trimpath"
        nice -n 19 go build -o bin/ \
            -ldflags "-s -w -X $version_in.gitVersion=$version -X $version_in.gitMajor=1 -X $version_in.gitMinor=34" \
            "k8s.io/kubernetes/cmd/$1"
    ) >"$cache/$1.log" 2>&1 || return 1
    mv "$made/bin/$1" "$cache/$1"
    rm "$cache/$1.log"
}
for program in "${programs[@]}"; do
    [[ ! -x $cache/$program ]] || continue
    command -v go >/dev/null || skip "there is no go to build $program: scripts/install-deps cluster"
    mkdir -p "$cache"
    build "$program" || skip "$program cannot be built: $(tail -n 1 "$cache/$program.log")"
done
rm -rf "$cache/go"
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug
isotherm=${ISOTHERM:-$built/isotherm}
[[ -x $isotherm ]] || cargo build -q --bin isotherm
PYTHONDONTWRITEBYTECODE=1 exec python3 tests/cluster/checks.py "$cache" "$(realpath "$isotherm")"
