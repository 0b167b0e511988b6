# Sourced by tests that need Python packages: sets `venv` to an environment that has those of
# tests/interop/requirements.txt, or prints that the suite $1 is skipped, and ends.
venv=$PWD/.venv/interop
stamp=$venv/$(sha256sum tests/interop/requirements.txt | cut -c1-16)
if [[ ! -e $stamp ]]; then
    rm -rf "$venv"
    mkdir -p target
    if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check \
        -r tests/interop/requirements.txt; } >target/interop-pip.log 2>&1; then
        echo "SKIP $1: no Python packages: $(tail -n 1 target/interop-pip.log)"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
    touch "$stamp"
fi
