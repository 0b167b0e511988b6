#!/usr/bin/env bash
# Tests first-touch profiles on programs with known answers: run.sh [--long] [--runs N] [ISOTHERM].
# Each program is recorded from its start; check.py compares the report with the program's own line.
#
# Limits: accuracy >= 0.95 without recycling; touched_accuracy >= 0.85 with --recycle. Java with --recycle is printed
# and not judged: a collector moves objects to memory that it touches first itself.
#
# Commit level: C and Rust, and C with --recycle, 12 s each. --long: all languages in both modes, 18 s each; --runs: so
# many times each, and a table of medians and minima. Two run at a time.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/blame
is_long='' runs=1 isotherm=${ISOTHERM:-}
while (($#)); do
    case $1 in
    --long) is_long=yes ;;
    --runs) runs=$2 && shift ;;
    -*) echo "usage: tests/blame/run.sh [--long] [--runs N] [ISOTHERM]" >&2 && exit 2 ;;
    *) isotherm=$1 ;;
    esac
    shift
done
passed=0 failed=0 skipped=0
skip() { echo "SKIP blame: $1" && skipped=$((skipped + 1)); }
fail() { echo "FAILED $1" && failed=$((failed + 1)); }
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0))
    exit
}
if (cd $here && python3 -B -m doctest check.py); then passed=$((passed + 1)); else fail "check.py's own tests"; fi
if [[ -z $isotherm ]]; then
    isotherm=$(realpath -m "${CARGO_TARGET_DIR:-target}")/debug/isotherm
    [[ -x $isotherm ]] || cargo build -q --bin isotherm
fi
if ((EUID != 0)); then
    skip "watching page faults takes root"
    finish
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [[ -n $is_long ]]; then
    duration=18s languages=(c cpp rust go java python)
    modes=("c" "c --recycle" "cpp" "cpp --recycle" "rust" "rust --recycle" "go" "go --recycle" "java" "java --recycle"
        "python" "python --recycle")
else
    duration=12s languages=(c rust)
    modes=("c" "rust" "c --recycle")
fi
while IFS= read -r line; do
    case $line in
    "SKIP "*) skip "${line#SKIP }" ;;
    *) echo "$line" ;;
    esac
done < <($here/build "$folder/bin" "${languages[@]}" 2>&1 || true)

# one NAME LANGUAGE [FLAG...]: records, reports and checks.
one() {
    local out=$folder/$1 language=$2
    shift 2
    # shellcheck disable=SC2016
    "$isotherm" record --stacks --duration "$duration" --stop-command -q -o "$out.isotherm" -- \
        sh -c 'echo $$ >"$0.pid"; exec "$@"' "$out" "$folder/bin/$language" --seconds 60 "$@" >"$out.truth" 2>"$out.log" || true
    "$isotherm" report blame "$out.isotherm" --json --idle 5s >"$out.blame" 2>>"$out.log" &&
        python3 -B $here/check.py "$out.blame" "$out.truth" >"$out.checked" 2>>"$out.log" &&
        tail -n 1 "$out.checked" >"$out.result" || true
    rm -f "/tmp/perf-$(cat "$out.pid").map"
}

all=()
for ((run = 1; run <= runs; run++)); do
    for mode in "${modes[@]}"; do
        read -r -a words <<<"$mode"
        if [[ -x $folder/bin/${words[0]} ]]; then all+=("$mode:$run"); fi
    done
done
for ((at = 0; at < ${#all[@]}; at += 2)); do
    pids=()
    for each in "${all[@]:at:2}"; do
        read -r -a words <<<"${each%:*}"
        one "$each" "${words[@]}" &
        pids+=($!)
    done
    wait "${pids[@]}" || true
done

# judge NAME RESULT: prints a row; fails below the limit.
judge() {
    python3 - "$@" <<'END'
import json, sys
name, path = sys.argv[1:]
found = json.load(open(path))
is_recycled = "--recycle" in name
key, least = ("touched_accuracy", 0.85) if is_recycled else ("accuracy", 0.95)
mib = {key: found[key] / (1 << 20) for key in ("true", "over", "hot", "nobody")}
print(f"{name:22} {found['accuracy']:8.3f} {found['touched_accuracy']:16.3f}", *(f"{mib[key]:6.1f}" for key in mib))
sys.exit(found[key] < least)
END
}
echo "language and mode: run accuracy touched_accuracy true over hot nobody (MiB)"
for each in "${all[@]}"; do
    if [[ ! -s $folder/$each.result ]]; then
        fail "$each: no result"
        tail -n 5 "$folder/$each.log"
    elif judge "$each" "$folder/$each.result"; then
        passed=$((passed + 1))
    elif [[ $each == "java --recycle"* ]]; then
        passed=$((passed + 1))
    else
        fail "$each"
        cat "$folder/$each.checked"
    fi
done
if ((runs > 1)); then
    python3 - "$folder"/*.result <<'END'
import json, statistics, sys
from collections import defaultdict
from pathlib import Path
found = defaultdict(list)
for path in sys.argv[1:]:
    found[Path(path).name.split(":")[0]].append(json.loads(Path(path).read_text()))
print("median and minimum     accuracy        touched_accuracy  over/hot/nobody MiB (medians)")
for name, results in found.items():
    text = f"{name:20}"
    for key in ("accuracy", "touched_accuracy"):
        values = [result[key] for result in results]
        text += f"  {statistics.median(values):.3f} {min(values):.3f}   "
    rest = (statistics.median(result[key] for result in results) / (1 << 20) for key in ("over", "hot", "nobody"))
    print(text, *(f"{value:.1f}" for value in rest))
END
fi
finish
