# Everything runs in $(VENV), which `install` makes; the other targets call it when it is missing or out of date.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_FLAGS ?=
EXTRAS := llm,local-llm,finetune,mujoco,box2d,worlds,sb3,plots,video,loggers,analysis,search,slurm,tuning,docs,dev

# Tests start hundreds of processes, each of which would compile the package and what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test test-again test-long test-fast test-hydra-next test-lowest lint format bench mutants matrix docs release clean
install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) --upgrade pip
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e '.[$(EXTRAS)]'
	$(BIN)/llmrl-install-meltingpot --optional --constraint constraints.txt
	touch $@

demo: install  ## the main job: a principal governs a society in Clean Up, and is filmed without and with its best mechanism (no key needed); the film is side_by_side.gif
	$(BIN)/llmrl-train env=cleanup principal=llm llm=scripted name=demo
	$(BIN)/llmrl-evaluate latest:demo --mechanism none,best --episodes 16 --video --video-steps 300

test: install  ## all but the longest tests: about 11 minutes on two cores
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations=40 -m "not long"

test-again: install  ## what failed last time, one after the other: what passes now needed a quiet machine, and is to be mended
	$(BIN)/python -m pytest -v --last-failed --last-failed-no-failures none

test-long: install  ## the others: soaks, notebooks, every one of what `test` tries some of
	$(BIN)/python -m pytest -n 4 --dist worksteal --durations=40 -m long

test-fast: install  ## nothing slow, and no processes
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow and not long"

test-hydra-next: install  ## what stands on Hydra, against its next version
	scripts/hydra_next.sh

test-lowest: install  ## nothing slow, with the lowest versions of direct dependencies that pyproject.toml allows
	scripts/lowest_versions.sh

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python scripts/naming.py
	$(BIN)/python scripts/copies.py --check
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install  ## prints ratios measured side by side
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/escape_room.py
	$(BIN)/python benchmarks/melting_pot.py
	$(BIN)/python benchmarks/training_episode.py
	$(BIN)/python benchmarks/acting.py
	$(BIN)/python benchmarks/llm_client.py
	$(BIN)/python benchmarks/llm_scoring.py
	$(BIN)/python benchmarks/local_chat.py
	$(BIN)/python benchmarks/launchers.py --rounds 1
	$(BIN)/python benchmarks/sweep_report.py
	$(BIN)/python benchmarks/society_rules.py
	$(BIN)/python benchmarks/landscapes.py --runs 20 --gp-runs 2 --jobs 2
	$(BIN)/python benchmarks/policy_search_tokens.py
	$(BIN)/python benchmarks/principal_step.py --rounds 1
	$(BIN)/python benchmarks/candidates.py --rounds 1
	$(BIN)/python benchmarks/rooms.py
	$(BIN)/python benchmarks/babyai_text.py
	$(BIN)/python benchmarks/particles.py
	$(BIN)/python benchmarks/minigrid_ppo.py --rounds 1
	$(BIN)/python benchmarks/teacher_quality.py --episodes 200
	$(BIN)/python benchmarks/particle_teachers.py --games 200
	@# On one idle core: a minute, a quarter of one, and a minute and a half; the page of fine-tuning has longer training.
	$(BIN)/python benchmarks/policy_search.py --rounds 1
	$(BIN)/python benchmarks/known_policies.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/finetuning.py --base-steps 150 --sft-steps 40 --grpo-steps 10
	@# Not here: benchmarks/gpu.py, which ends with an error where there is no GPU, and at toy sizes measures nothing.

mutants: install  ## changes the code in small ways and counts what the tests notice; hours, or a sample by scripts/mutants.py --sample 150
	$(BIN)/pip install -q -c constraints.txt mutmut
	$(BIN)/python scripts/mutants.py

matrix: install  ## tries every part with every other, and writes docs/matrix.md; about eight minutes of a core
	$(BIN)/python scripts/matrix.py

docs: install  ## a site in build/docs, links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release: install lint docs  ## builds wheel and source distribution in dist/, and checks them and the site
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m pytest -q tests/test_installation.py tests/test_release_files.py

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
