#!/bin/sh
# Builds the wheel and installs it alone into a clean environment, with its dependencies from the package index.
#
#   sh scripts/clean_install.sh [EXTRAS]      as in: sh scripts/clean_install.sh anthropic,openai
#
# Prints how many packages that is, how large they are, and how long `import recollect` takes.
set -eu

extras=${1:-}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

.venv/bin/python -m build --no-isolation --wheel --outdir "$place" . > "$place/build.log" || { cat "$place/build.log"; exit 1; }
.venv/bin/python -m venv "$place/env"
wheel=$(ls "$place"/*.whl)
"$place/env/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel${extras:+[$extras]}"

cd "$place"
printf 'recollect %s\n' "$(env/bin/recollect --version)"
env/bin/python - <<'PROGRAM'
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

tools = {"pip", "setuptools"}
found = {each.metadata["Name"]: each for each in distributions() if each.metadata["Name"] not in tools}
size = sum(Path(each.locate_file(file)).stat().st_size for each in found.values() for file in each.files or ()
           if Path(each.locate_file(file)).is_file())
timed = "import time; t = time.perf_counter(); import recollect; print(time.perf_counter() - t)"
took = min(float(subprocess.check_output([sys.executable, "-c", timed])) for _ in range(5))
print(f"{len(found) - 1} packages beside it, {size / 1e6:.0f} MB, imported in {took:.3f} s")
PROGRAM
