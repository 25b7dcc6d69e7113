#!/usr/bin/env bash
# Write requirements.lock: the versions of constraints.txt and of all other dependencies of the extras, with hashes, for all
# platforms and Python versions of the project. Run this after a change of pyproject.toml or constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
# The extra gpu is excluded, because it requires different versions (see pyproject.toml).
extras=$(sed -n 's/^EXTRAS := //p' Makefile),meltingpot,notebooks
# mkdocs-material requires Python 3.11.5.
.venv/bin/uv pip compile pyproject.toml --universal --python-version 3.11.5 --generate-hashes --quiet \
    --no-emit-index-url --no-emit-find-links --constraint constraints.txt $(printf -- ' --extra %s' ${extras//,/ }) \
    --custom-compile-command scripts/lock.sh --output-file requirements.lock
