# Sourced by tests that need Python packages: sets `venv` to an environment that has those of
# tests/interop/requirements.txt, or prints that the suite $1 is skipped, and ends. Those of optional.txt are there if they
# can be had for this Python: tests that need them are skipped without. uv installs them: it takes a fifth of pip's time, and
# keeps packages for the next checkout.
venv=$PWD/.venv/interop
stamp=$venv/$(cat tests/interop/requirements.txt tests/interop/optional.txt | sha256sum | cut -c1-16)
if [[ ! -e $stamp ]]; then
    rm -rf "$venv"
    mkdir -p target
    add() { "$venv/bin/uv" pip install -q --python "$venv/bin/python" "$@" >>target/interop-pip.log 2>&1; }
    if ! { python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check uv==0.13.9; } >target/interop-pip.log 2>&1 ||
        ! add -r tests/interop/requirements.txt; then
        echo "SKIP $1: no Python packages: $(tail -n 1 target/interop-pip.log)"
        echo "0 passed, 0 failed, 1 skipped"
        exit 0
    fi
    while read -r package; do
        add "$package" || echo "no $package: $(tail -n 1 target/interop-pip.log)"
    done <tests/interop/optional.txt
    touch "$stamp"
fi
