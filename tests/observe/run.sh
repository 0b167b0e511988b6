#!/usr/bin/env bash
# What Prometheus and Grafana are given: the rules by promtool's own tests, and every query of the dashboard and of the
# rules on a real Prometheus that scrapes a real daemon. The daemon watches this machine in a dry run, which takes root.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/venv.sh
. tests/venv.sh observe
passed=0 failed=0 skipped=0
skip() { echo "SKIP observe: $1"; skipped=$((skipped + 1)); }
check() {
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED $name"; fi
}
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0))
}
if [[ -x $venv/bin/kubernetes-validate ]]; then
    check "manifests" "$venv/bin/kubernetes-validate" --strict --quiet contrib/kubernetes/base/daemonset.yaml
    check "manifests that recommend" "$venv/bin/kubernetes-validate" --strict --quiet contrib/kubernetes/recommend/recommend.yaml
    check "manifests that act" "$venv/bin/python" tests/observe/acting.py
else
    skip "there is no kubernetes-validate"
fi
if ! command -v promtool >/dev/null || ! command -v prometheus >/dev/null; then
    skip "there is no Prometheus"
    finish
    exit
fi
check "alert rules" promtool check rules contrib/prometheus/isotherm.rules.yaml
check "alerts" promtool test rules contrib/prometheus/isotherm.rules.test.yaml
built=$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug
isotherm=${ISOTHERM:-$built/isotherm}
[[ -x $isotherm ]] || cargo build -q --bin isotherm
if ((EUID != 0)); then
    skip "watching a machine takes root"
    finish
    exit
fi
folder=$(mktemp -d)
pids=()
end() {
    ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
    wait || true
    [[ ! -d ${group:-} ]] || rmdir "$group" "${group%/*}"
    rm -rf "$folder"
}
trap end EXIT
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
metrics=127.0.0.1:$(port) prometheus=127.0.0.1:$(port) otlp=$(port)
# A pod as a kubelet leaves it: a control group with its uid, a process in it, and a folder of logs.
uid=0a1b2c3d-1111-2222-3333-444455556666
group=$(awk '$3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/ { print $2; exit }' /proc/mounts)
[[ -n $group ]] || group=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
id=$(printf 'ab%.0s' {1..32})
group=$group/isotherm-test-pod${uid//-/_}.slice/cri-containerd-$id.scope
mkdir -p "$folder/pods/shop_cart-7d9f_$uid" "$folder/containers" "$group"
touch "$folder/containers/cart-7d9f_shop_web-$id.log"
python3 -c 'import time; kept = bytearray(64 << 20); time.sleep(120)' &
pids+=($!)
echo $! >"$group/cgroup.procs"
"$isotherm" start --all --preset prcl --dry-run --socket "$folder/socket" --metrics "$metrics" --pods "$folder/pods" \
    --otlp "http://127.0.0.1:$otlp" --otlp-every 1s >"$folder/isotherm.log" 2>&1 &
pids+=($!)
cat >"$folder/prometheus.yaml" <<END
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [$PWD/contrib/prometheus/isotherm.rules.yaml]
scrape_configs:
- {job_name: isotherm, static_configs: [{targets: ["$metrics"]}]}
END
prometheus --config.file="$folder/prometheus.yaml" --storage.tsdb.path="$folder/tsdb" --web.listen-address="$prometheus" \
    >"$folder/prometheus.log" 2>&1 &
pids+=($!)
# Not beside the other packages: Ray takes a part of OpenTelemetry for all of it.
messages=$PWD/.venv/opentelemetry-proto-1.45.2
if [[ -d $messages ]] || "$venv/bin/uv" pip install -q --target "$messages" opentelemetry-proto==1.45.2; then
    PYTHONPATH=$messages check "OTLP" "$venv/bin/python" tests/observe/otlp.py "$otlp" "http://$metrics/metrics" \
        "$folder/isotherm.log"
else
    skip "OTLP: there is no opentelemetry-proto"
fi
check "queries" python3 tests/observe/queries.py "http://$prometheus" "http://$metrics/metrics" || true
((failed == 0)) || tail -n 5 "$folder"/*.log
skip "there is no Grafana in Debian, PyPI or npm: its dashboard's structure and queries are tested, not how it looks"
finish
