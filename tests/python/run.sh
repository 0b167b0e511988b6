#!/usr/bin/env bash
# Tests the Python package with the module that Cargo has built for its tests: types against the module, lints, pytest,
# the tour. `--long` builds and installs the package and the command by pip as well. No privilege is needed; tests of a
# live session on real processes are skipped without.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/venv.sh
. tests/venv.sh python

# The same selection of packages as in all tests: nothing is compiled twice.
cargo test -q --test module >/dev/null
built=$(realpath "${CARGO_TARGET_DIR:-target}")/debug
export ISOTHERM=${ISOTHERM:-$built/isotherm}
[[ -x $ISOTHERM ]] || cargo build -q --bin isotherm
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r python/python/isotherm "$folder/"
cp "$built/deps/lib_isotherm.so" "$folder/isotherm/_isotherm.abi3.so"
export PYTHONPATH=$folder MPLBACKEND=Agg MYPYPATH=$folder PYTHONDONTWRITEBYTECODE=1

passed=0 failed=0 skipped=0
check() {
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED $name"; fi
}

in_python() (cd python && "$@")
is_long=
if [[ ${1:-} == --long ]]; then
    is_long=yes
    shift
fi

check "python lint" in_python "$venv/bin/ruff" check --no-cache .
check "python format" in_python "$venv/bin/ruff" format --no-cache --check .
check "python types" in_python "$venv/bin/mypy" --no-error-summary --cache-dir "$folder/mypy" -p isotherm
check "python types of tests" in_python "$venv/bin/mypy" --no-error-summary --cache-dir "$folder/mypy" tests
check "python stubs" in_python "$venv/bin/python" -m mypy.stubtest isotherm --concise

# One line for each test, as the runner counts them.
status=0
(cd python && "$venv/bin/python" -m pytest -rA --tb=short "$@") >"$folder/pytest" 2>&1 || status=$?
grep -vE '^(PASSED|SKIPPED) ' "$folder/pytest" || true
count() { grep -cE "^$1 " "$folder/pytest" || true; }
passed=$((passed + $(count PASSED))) failed=$((failed + $(count FAILED) + $(count ERROR)))
while read -r line; do
    echo "SKIP python ${line#SKIPPED \[*\] }"
    skipped=$((skipped + 1))
done < <(grep -E '^SKIPPED ' "$folder/pytest")
# Nothing collected, or pytest itself has failed.
if ((status != 0)) && ! grep -qE '^(FAILED|ERROR) ' "$folder/pytest"; then
    failed=$((failed + 1))
fi

# The module is of Python's stable interface: what is here of newer ones loads it, too.
for version in 3.12 3.13 3.14; do
    # A pyenv shim may stand for no interpreter.
    newer=$(python$version -c 'import sys; print(sys.executable)' 2>/dev/null || ls -d ~/.pyenv/versions/$version.*/bin/python 2>/dev/null | tail -n 1 || true)
    if [[ -z $newer ]]; then
        echo "SKIP python $version: it is not installed"
        skipped=$((skipped + 1))
        continue
    fi
    check "python $version" "$newer" python/tests/smoke.py
done
if [[ -n $is_long ]]; then
    check "python install" tests/python/install.sh
fi
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
