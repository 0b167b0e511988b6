#!/usr/bin/env bash
# Opens a record of ours with programs that are not ours (pyarrow with pandas, polars, DuckDB), and
# compares rows and sums between them and with `isotherm report`; lets damo read our exports, and
# reads what damo writes. Needs no privilege.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/venv.sh
. tests/venv.sh interop
isotherm=${ISOTHERM:-target/debug/isotherm}
[[ -x $isotherm ]] || cargo build -q --bin isotherm
record=$(mktemp --suffix=.isotherm)
trap 'rm -f "$record"' EXIT
"$isotherm" record --simulated --quiet --duration 3s -o "$record"
rows=$("$isotherm" report access "$record" --snapshot all --format csv | tail -n +2 | wc -l)
passed=0 failed=0 skipped=0
check() {
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED $name"; fi
}

check readers "$venv/bin/python" tests/interop/readers.py "$record" "$rows"

# A rewritten file must give the original record.
they_rewrite_our_parquet() {
    local name
    "$isotherm" convert "$record" "$theirs/first.parquet" >/dev/null &&
        "$isotherm" convert "$theirs/first.parquet" "$theirs/first.isotherm" >/dev/null &&
        "$venv/bin/python" tests/interop/rewritten.py "$theirs/first.parquet" "$theirs" || return 1
    for name in pyarrow pandas polars duckdb; do
        "$isotherm" convert "$theirs/$name.parquet" "$theirs/$name.isotherm" >/dev/null &&
            cmp "$theirs/$name.isotherm" "$theirs/first.isotherm" &&
            "$isotherm" report wss "$theirs/$name.parquet" >"$theirs/report" &&
            [[ -s $theirs/report ]] || { echo "rewritten by $name"; return 1; }
    done
}
they_read_flat_tables() {
    "$isotherm" convert --flat "$theirs/flat.parquet" "$record" >/dev/null &&
        "$venv/bin/python" tests/interop/flat.py "$theirs/flat.parquet"
}

# damo reads what we export and finds the same in it, and we read what damo writes.
theirs=$(mktemp -d)
trap 'rm -rf "$record" "$theirs"' EXIT
check "they rewrite our Parquet" they_rewrite_our_parquet
check "they read flat tables" they_read_flat_tables
damo_reads_ours() {
    "$isotherm" convert "$record" "$theirs/ours.json" >/dev/null &&
        "$isotherm" convert "$record" "$theirs/ours.damo" >/dev/null &&
        "$venv/bin/python" tests/interop/totals.py "$record" >"$theirs/totals" &&
        "$venv/bin/python" tests/interop/damo_reads.py compare "$theirs/totals" "$theirs"/ours.* ||
        return 1
    for report in access "heatmap --output stdout" wss; do
        # shellcheck disable=SC2086
        (cd "$theirs" && "$damo" report $report --input ./ours.damo >"$theirs/report" 2>&1 &&
            [[ -s $theirs/report ]] && ! grep -qiE 'fail|error|traceback' "$theirs/report") ||
            { echo "damo report $report:"; cat "$theirs/report"; return 1; }
    done
}
we_read_damos() {
    local format
    "$venv/bin/python" tests/interop/damo_reads.py write "$theirs" || return 1
    for format in json damo trace; do
        "$isotherm" convert "$theirs/theirs.$format" "$theirs/$format.isotherm" >/dev/null &&
            "$venv/bin/python" tests/interop/totals.py "$theirs/$format.isotherm" >"$theirs/totals" &&
            "$venv/bin/python" tests/interop/damo_reads.py compare "$theirs/totals" "$theirs/theirs.damo" ||
            return 1
    done
}

# damo makes of a configuration that we rewrote what it makes of its own.
damo_reads_our_configurations() {
    local file form
    cargo build -q --example rewrite || return 1
    # memtierd.yaml is not of damo.
    for file in crates/config/tests/fixtures/[!m]*.{json,yaml}; do
        for form in json yaml; do
            target/debug/examples/rewrite $form <"$file" >"$theirs/configuration" &&
                "$venv/bin/python" tests/interop/damo_config.py "$file" "$theirs/configuration" ||
                return 1
        done
    done
}
check "damo reads our configurations" damo_reads_our_configurations

# A configuration must give the same kernel tree as damo.
damo_would_write_the_same() {
    local file
    # memtierd.yaml is not of damo.
    for file in crates/config/tests/fixtures/[!m]*.{json,yaml}; do
        "$isotherm" damon --plan "$file" >"$theirs/plan" &&
            "$venv/bin/python" tests/interop/damo_tree.py "$file" "$theirs/plan" ||
            return 1
    done
}
check "damo would write the same" damo_would_write_the_same

check "our tables have every option of damo" "$venv/bin/python" tests/interop/damo_options.py

damo=$venv/bin/damo
if ! command -v file >/dev/null; then
    echo "SKIP damo: it needs the command file (Debian: apt-get install file)"
    skipped=$((skipped + 2))
else
    check "damo reads ours" damo_reads_ours
    check "we read damo's" we_read_damos
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
