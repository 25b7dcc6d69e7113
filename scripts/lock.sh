#!/usr/bin/env bash
# Writes requirements.lock: the versions of constraints.txt and of everything else that the extras need, with hashes, for
# every platform and Python version of the project. Run it after a change of pyproject.toml or constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
# Not in it: gpu, which needs other versions than the rest (see pyproject.toml).
extras=$(sed -n 's/^EXTRAS := //p' Makefile),meltingpot,notebooks
# mkdocs-material needs Python 3.11.5.
.venv/bin/uv pip compile pyproject.toml --universal --python-version 3.11.5 --generate-hashes --quiet \
    --no-emit-index-url --no-emit-find-links --constraint constraints.txt $(printf -- ' --extra %s' ${extras//,/ }) \
    --custom-compile-command scripts/lock.sh --output-file requirements.lock
