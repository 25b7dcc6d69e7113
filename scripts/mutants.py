"""Changes the code in small ways, one at a time, and counts how many of these mutants the tests notice.

    python scripts/mutants.py                     # every target, hours of a core
    python scripts/mutants.py advantages budgets  # some of them
    python scripts/mutants.py --sample 150        # 150 mutants of each target, drawn at random

Works on a copy in `build/mutants`. Prints a table: mutants killed, survived, timed out, and those in functions that no
test of the target reaches. The score is the share killed or timed out of those that a test reaches; that of a sample
has a 95 % interval. In the copy `mutmut results` names survivors, and `mutmut show <name>` shows one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from llmrl.statistics.estimators import proportion

ROOT = Path(__file__).parents[1]
COPY = ROOT / "build" / "mutants"
COPIED = ("src", "tests", "conf", "docs", "examples", "scripts", "pyproject.toml", "README.md")
SOURCE = "src/llmrl/"
TARGETS: dict[str, tuple[list[str], list[str]]] = {
    "advantages": (
        ["algorithms/advantages_and_losses.py"],
        ["tests/algorithms/test_advantages.py", "tests/algorithms/test_reward_scale.py"],
    ),
    "ppo": (
        ["algorithms/ppo.py"],
        [
            "tests/algorithms/test_ppo.py",
            "tests/algorithms/test_published_losses.py",
            "tests/algorithms/test_minibatches.py",
            "tests/algorithms/test_recurrent.py",
            "tests/algorithms/test_stacked_networks.py",
        ],
    ),
    "statistics": (
        ["analysis/statistics.py", "analysis/intervals.py", "analysis/multiple_comparisons.py"],
        [
            "tests/analysis/test_statistics.py",
            "tests/analysis/test_replication.py",
            "tests/analysis/test_intervals.py",
            "tests/analysis/test_multiple_comparisons.py",
            "tests/analysis/test_against_rliable.py",
        ],
    ),
    "mechanisms": (
        ["envs/mechanisms.py", "envs/mechanism_text.py"],
        ["tests/envs/test_mechanisms.py", "tests/envs/test_mechanism_text.py"],
    ),
    "reader": (
        ["llms/reading/*.py"],
        [
            "tests/llms/test_reading_corpus.py",
            "tests/llms/test_reading_phenomena.py",
            "tests/llms/test_reading_quantities.py",
            "tests/llms/test_reading_sentences.py",
            "tests/llms/test_reading_wrappers.py",
        ],
    ),
    "budgets": (
        ["llms/budget.py", "llms/provider.py"],
        [
            "tests/llms/test_usage.py",
            "tests/llms/test_pricing.py",
            "tests/llms/test_budget.py",
            "tests/llms/test_provider.py",
            "tests/llms/test_lost_replies.py",
        ],
    ),
    "core": (
        ["core/seeding.py", "core/welfare_measures.py", "core/plain_data.py", "core/secrets.py"],
        [
            "tests/core",
            "tests/rollout/test_episode_summaries.py",
            "tests/run/test_odd_records.py",
        ],
    ),
}
"""Name -> modules below `src/llmrl`, which may be patterns, and the tests that should notice."""
COUNTS = ("killed", "survived", "timeout", "no_tests")


def main() -> None:
    """Run the targets that are named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="target", help=f"of {', '.join(TARGETS)}; none: all")
    parser.add_argument("--processes", type=int, default=2, help="how many mutants are tried at once, >= 1")
    parser.add_argument("--sample", type=int, help="how many mutants of a target are tried, >= 1; all unless given")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of a sample")
    asked = parser.parse_args()
    if unknown := set(asked.targets) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; choose from {', '.join(TARGETS)}")
    if asked.sample is not None and asked.sample < 1:
        parser.error("a sample has one mutant at least")
    say(f"{'target':<12}{'mutants':>9}{'killed':>9}{'survived':>10}{'timeout':>9}{'no test':>9}{'score':>8}  interval")
    for name in asked.targets or TARGETS:
        total, found = tried(name, asked.processes, asked.sample, asked.seed)
        noticed = found["killed"] + found["timeout"]
        met = noticed + found["survived"]
        line = (
            f"{name:<12}{total:>9}{found['killed']:>9}{found['survived']:>10}{found['timeout']:>9}"
            f"{found['no_tests']:>9}{noticed / met if met else 0.0:>8.0%}"
        )
        if asked.sample is not None and asked.sample < total and met:
            share = proportion(noticed, met)
            line += f"  {share.low:.0%} to {share.high:.0%}"
        say(line)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tried(name: str, processes: int, sample: int | None, seed: int) -> tuple[int, dict[str, int]]:
    """Try mutants of a target, all or `sample` of them; returns how many there are, and how many ended how."""
    modules, tests = TARGETS[name]
    copy = COPY / name
    prepare(copy, modules, tests)
    mutmut = [sys.executable, "-m", "mutmut"]
    run = [*mutmut, "run", "--max-children", str(processes)]
    log = copy / "mutmut.log"
    with log.open("w") as lines:
        if sample is not None:
            # It writes all mutants and meets all tests, and ends with an error as no mutant has this name.
            subprocess.run([*run, "none"], cwd=copy, stdout=lines, stderr=lines, check=False)
            run += drawn(mutants_in(copy), sample, seed)
        subprocess.run(run, cwd=copy, stdout=lines, stderr=lines, check=False)
    done = subprocess.run([*mutmut, "export-cicd-stats"], cwd=copy, capture_output=True, text=True, check=False)
    stats = copy / "mutants" / "mutmut-cicd-stats.json"
    if done.returncode or not stats.is_file():
        sys.exit(f"mutmut could not try {name}; see {log}")
    counted = json.loads(stats.read_text())
    found = {each: int(counted.get(each, 0)) for each in COUNTS}
    if not any(found.values()):
        sys.exit(f"mutmut tried no mutant of {name}; see {log}")
    return len(mutants_in(copy)), found


def mutants_in(copy: Path) -> list[str]:
    """Return the names of all mutants that mutmut has written in a copy."""
    files = sorted((copy / "mutants" / "src").rglob("*.py.meta"))
    return sorted(name for each in files for name in json.loads(each.read_text())["exit_code_by_key"])


def drawn(names: list[str], n: int, seed: int) -> list[str]:
    """Draw `n` of the names, all if there are fewer; names that stay are drawn again after a change of the code."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:n]


def prepare(copy: Path, modules: list[str], tests: list[str]) -> None:
    """Make a copy of the tree that mutmut is to work on, with its settings."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for each in COPIED:
        if (ROOT / each).is_dir():
            shutil.copytree(ROOT / each, copy / each, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / each, copy / each)
    inside = copy / "src" / "llmrl" / "conf"  # as an installed package has it
    if inside.is_symlink():
        inside.unlink()
    shutil.copytree(ROOT / "conf", inside)
    settings = {
        "source_paths": ["src/"],
        "only_mutate": [SOURCE + each for each in modules],
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": [
            *("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not long"),
            "--hypothesis-profile=mutants",
        ],
        "also_copy": [each for each in COPIED if each != "src"],
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    with (copy / "pyproject.toml").open("a") as project:
        project.write("\n[tool.mutmut]\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
