#!/usr/bin/env bash
# Tests the page in Debian's Chromium, and the types of its modules. What is needed of npm is fetched once, as
# package-lock.json pins it.
# `--long`: bytes that are no trace are tried for a minute.
set -euo pipefail
if [[ ${1:-} == --long ]]; then
    shift
    export FUZZ_S=${FUZZ_S:-60}
fi
cd "$(dirname "$0")"
skip() {
    echo "SKIP page: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
export CHROMIUM=${CHROMIUM:-$(command -v chromium || true)}
[[ -n $CHROMIUM ]] || skip "there is no chromium"
command -v npm >/dev/null || skip "there is no npm"
root=$(realpath ../..)
built=$(cd "$root" && realpath -m "${CARGO_TARGET_DIR:-target}")/debug
export ISOTHERM=${ISOTHERM:-$built/isotherm}
[[ -x $ISOTHERM ]] || (cd "$root" && cargo build -q --bin isotherm)
# The same selection of packages as in all tests: nothing is compiled twice.
(cd "$root" && cargo build -q --example ask --example trace --example stacks_record)
# A debug build reads the page's what-if from there.
(cd "$root" && scripts/what-if) || true
export ASK=$built/examples/ask TRACE=$built/examples/trace STACKS=$built/examples/stacks_record
modules=$root/.venv/page
if ! cmp -s package-lock.json "$modules/package-lock.json"; then
    mkdir -p "$modules"
    cp package.json package-lock.json "$modules/"
    (cd "$modules" && npm ci --no-audit --no-fund >npm.log 2>&1) || {
        rm -f "$modules/package-lock.json"
        skip "no npm packages: $(tail -n 1 "$modules/npm.log")"
    }
fi
ln -sfn "$modules/node_modules" node_modules
tests=(page.test.mjs blame.test.mjs what-if.test.mjs fuzz.test.mjs pictures.test.mjs)
skipped=0
try=$(mktemp -d)
"$TRACE" "$try/trace.isotherm"
"$ISOTHERM" report heatmap "$try/trace.isotherm" -o "$try/page.html"
if ! grep -q 'id="what-if-worker"' "$try/page.html"; then
    echo "SKIP what-if: scripts/what-if could not build it (rustup target add wasm32-unknown-unknown)"
    skipped=1 tests=(page.test.mjs blame.test.mjs pictures.test.mjs)
fi
rm -rf "$try"
passed=0 failed=0
if node_modules/.bin/tsc -p .; then passed=1; else failed=1; echo "FAILED page types"; fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
node --test --test-concurrency=1 --test-reporter=spec "$@" "${tests[@]}" | tee "$log" || true
count() { sed -n "s/^ℹ $1 \([0-9]*\)$/\1/p" "$log" | tail -n 1; }
sed -n 's/^﹣ \(.*\) ([0-9.]*ms) # \(.*\)$/SKIP page: \1: \2/p' "$log"
skipped=$((skipped + $(count skipped)))
passed=$((passed + $(count pass))) failed=$((failed + $(count fail)))
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
