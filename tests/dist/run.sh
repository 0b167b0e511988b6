#!/usr/bin/env bash
# Tests what scripts/dist makes: packs it twice, unpacks the tarball, installs and removes the Debian package in a root of its
# own, records a real process with the static command where there is nothing but it, and in an image of the Containerfile's
# last stage; installs the command by Cargo. Nothing is mounted or installed outside of a folder and namespaces that end with it.
set -euo pipefail
cd "$(dirname "$0")/../.."
passed=0 failed=0 skipped=0
check() {
    local name=$1 log=$folder/log
    shift
    # In a shell of its own: `set -e` has no effect within a condition.
    if bash -c 'set -euo pipefail; . tests/dist/checks.sh; "$@"' - "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name"
        tail -n 20 "$log"
    fi
}
skip() {
    skipped=$((skipped + 1))
    echo "SKIP dist: $1"
}
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0))
}
missing=$(scripts/install-deps dist 2>&1 >/dev/null | head -n 1) || true
if [[ -n $missing ]]; then
    skip "${missing%.}"
    finish
    exit
fi
# Without these, what they judge and run is skipped below.
scripts/install-deps dist-test >/dev/null 2>&1 || true
folder=$(mktemp -d)
target=
end() {
    [[ -z $target ]] || kill "$target" 2>/dev/null || true
    rm -rf "$folder"
}
trap end EXIT
# Packed twice of the same time, whoever commits meanwhile.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH FOLDER=$folder FIRST=$folder/first SECOND=$folder/second

if ! DIST=$FIRST scripts/dist tarball deb >"$folder/build" 2>&1; then
    if grep -q "^dist: rustup cannot add" "$folder/build"; then
        skip "$(grep "^dist: " "$folder/build")"
    else
        failed=1
        echo "FAILED scripts/dist"
        tail -n 20 "$folder/build"
    fi
    finish
    exit
fi
check "static" is_static
check "checksums" sums_agree
check "reproducible" packs_the_same_bytes
check "tarball" unpacks
check "cargo install" installs_by_cargo
if command -v lintian >/dev/null; then
    check "lintian" lintian --fail-on error,warning "$FIRST"/*.deb
else
    skip "there is no lintian"
fi
if ((EUID != 0)); then
    skip "installing and recording takes root"
    finish
    exit
fi
check "deb" installs_and_removes
python3 tests/dist/busy.py "$folder/busy" &
export TARGET=$! target=$!
for _ in {1..100}; do
    [[ ! -e $folder/busy ]] || break
    sleep 0.1
done
check "empty root" records_in_an_empty_root
check "page" its_page_is_light
if ! command -v buildah >/dev/null || ! command -v runc >/dev/null; then
    skip "there is no buildah or no runc"
else
    check "image" records_in_a_container
fi
finish
