# All targets use the virtual environment $(VENV). `install` creates it; other targets do so if it is missing or outdated.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_FLAGS ?=
EXTRAS := llm,local-llm,finetune,mujoco,box2d,worlds,sb3,plots,video,loggers,analysis,search,slurm,tuning,docs,dev

# Tests start hundreds of processes; without cached bytecode, each would compile all imported modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test test-again test-long test-fast test-hydra-next test-lowest lint format bench mutants matrix docs release clean
install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) --upgrade pip
	$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e '.[$(EXTRAS)]'
	$(BIN)/llmrl-install-meltingpot --optional --constraint constraints.txt
	touch $@

demo: install  ## run the main job (a principal sets incentives in Clean Up; no key needed), and record a video without and with its best mechanism, side_by_side.gif
	$(BIN)/llmrl-train env=cleanup principal=llm llm=scripted name=demo
	$(BIN)/llmrl-evaluate latest:demo --mechanism none,best --episodes 16 --video --video-steps 300

test: install  ## run all tests except the longest; about 9 minutes on two cores
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations=40 -m "not long"

test-again: install  ## rerun the tests that failed in the last run, one at a time; a test that passes now depends on the load of the machine, which is a defect
	$(BIN)/python -m pytest -v --last-failed --last-failed-no-failures none

test-long: install  ## run the longest tests: interruptions, notebooks, all options of which `test` samples some
	$(BIN)/python -m pytest -n 4 --dist worksteal --durations=40 -m long

test-fast: install  ## run the tests that are neither slow nor start processes
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow and not long"

test-hydra-next: install  ## run the tests that depend on Hydra with its next version
	scripts/hydra_next.sh

test-lowest: install  ## run the fast tests with the lowest versions of direct dependencies that pyproject.toml allows
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

bench: install  ## print ratios of speeds, measured side by side
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
	@# On one idle core: 60, 15 and 90 seconds. docs/finetuning.md has results of longer training.
	$(BIN)/python benchmarks/policy_search.py --rounds 1
	$(BIN)/python benchmarks/known_policies.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/finetuning.py --base-steps 150 --sft-steps 40 --grpo-steps 10
	@# benchmarks/gpu.py and gpu_learning.py need a GPU and are run separately.

mutants: install  ## run mutation tests: hours; scripts/mutants.py --sample 150 runs a sample
	$(BIN)/pip install -q -c constraints.txt mutmut
	$(BIN)/python scripts/mutants.py

matrix: install  ## combine all parts with each other and write docs/matrix.md; about 8 CPU-minutes
	$(BIN)/python scripts/matrix.py

docs: install  ## build the site in build/docs and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release: install lint docs  ## build wheel and source distribution in dist/, and check them and the site
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m pytest -q tests/test_installation.py tests/test_release_files.py

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
