#!/usr/bin/env bash
# Installs the package and the command by pip, as users do, each into an environment of its own without anything else,
# and uses them there. Minutes: it compiles all of it as a release, but not optimised. Run by `tests/python/run.sh --long`.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CARGO_PROFILE_RELEASE_OPT_LEVEL=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

python3 -m venv "$folder/package"
"$folder/package/bin/pip" install -q --disable-pip-version-check ./python
(cd "$folder" && "$folder/package/bin/python" "$OLDPWD/python/tests/smoke.py")

python3 -m venv "$folder/command"
"$folder/command/bin/pip" install -q --disable-pip-version-check ./python/cli
(cd "$folder" && "$folder/command/bin/isotherm" --version)
