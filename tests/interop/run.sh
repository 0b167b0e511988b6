#!/usr/bin/env bash
# Opens a record of ours with programs that are not ours (pyarrow with pandas, polars, DuckDB), and
# compares rows and sums between them and with `isotherm report`. Needs no privilege.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=.venv/interop
stamp=$venv/$(sha256sum tests/interop/requirements.txt | cut -c1-16)
if [[ ! -e $stamp ]]; then
    rm -rf "$venv"
    if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check \
        -r tests/interop/requirements.txt; } >target/interop-pip.log 2>&1; then
        echo "SKIP interop: no Python packages: $(tail -n 1 target/interop-pip.log)"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
    touch "$stamp"
fi
isotherm=${ISOTHERM:-target/debug/isotherm}
[[ -x $isotherm ]] || cargo build -q -p isotherm
record=$(mktemp --suffix=.isotherm)
trap 'rm -f "$record"' EXIT
"$isotherm" record --simulated --quiet --duration 3s -o "$record"
rows=$("$isotherm" report access "$record" --snapshot all --format csv | tail -n +2 | wc -l)
if "$venv/bin/python" tests/interop/readers.py "$record" "$rows"; then
    echo "1 passed, 0 failed, 0 skipped"
else
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi
