#!/usr/bin/env bash
# Run the tests of code that depends on Hydra with the next version of Hydra, which is installed in a separate folder.
# After the release of 1.4.0, extend the version range in pyproject.toml, and use the next release candidate here.
set -euo pipefail
cd "$(dirname "$0")/.."
next=build/hydra-next
if [ ! -d "$next/hydra" ]; then
    .venv/bin/python -m pip install --quiet --no-deps --target "$next" hydra-core==1.4.0rc3 omegaconf==2.4.1rc1
fi
PYTHONPATH="$next" .venv/bin/python -m pytest -n 2 --dist worksteal tests/experiment tests/cli/test_hydra_words.py \
    tests/config/test_hostile_configs.py tests/cli/test_train.py tests/sweeps/test_local.py tests/tuning/test_search.py "$@"
