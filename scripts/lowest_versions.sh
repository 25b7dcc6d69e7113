#!/usr/bin/env bash
# Run the fast tests with the lowest version of each direct dependency that pyproject.toml allows.
set -euo pipefail
cd "$(dirname "$0")/.."
env=build/lowest
if [ ! -x "$env/bin/pytest" ]; then
    .venv/bin/uv venv --quiet --clear --python .venv/bin/python "$env"
    .venv/bin/uv pip install --quiet --python "$env/bin/python" --resolution lowest-direct \
        -e '.[analysis,box2d,llm,meltingpot,mujoco,plots,search,slurm,tuning,video]'
    # Test tools have no lowest versions.
    .venv/bin/uv pip install --quiet --python "$env/bin/python" pytest pytest-xdist hypothesis jsonschema
fi
"$env/bin/python" -m pytest -n 2 --dist worksteal -m "not slow and not long" tests/config tests/core tests/algorithms \
    tests/networks tests/rollout tests/principals tests/envs tests/loops "$@"
