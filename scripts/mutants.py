"""Mutation testing: count the small changes of the code that tests detect.

    python scripts/mutants.py                     # all targets; takes hours on one core
    python scripts/mutants.py advantages budgets  # some targets
    python scripts/mutants.py --sample 150        # a random sample of 150 mutants of each target

Works on a copy in `build/mutants`. Prints a table with the numbers of killed, surviving and timed-out mutants, and of
mutants in functions that the tests of the target do not execute. The score is the share of killed or timed-out mutants
among those that tests execute; for a sample, it has a 95 % interval. In the copy, `mutmut results` lists surviving
mutants, and `mutmut show <name>` shows one.
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
COPY_ROOT = ROOT / "build" / "mutants"
COPIED_PATHS = ("src", "tests", "conf", "docs", "examples", "scripts", "pyproject.toml", "README.md")
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
"""(Modules or patterns below `src/llmrl`, tests that should detect changes) by name of the target."""
OUTCOMES = ("killed", "survived", "timeout", "no_tests")


def main() -> None:
    """Test the targets in the command line, or all targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "targets", nargs="*", metavar="target", help=f"targets among {', '.join(TARGETS)} (default: all)"
    )
    parser.add_argument("--processes", type=int, default=2, help="number of concurrent mutants, >= 1")
    parser.add_argument("--sample", type=int, help="number of tested mutants of each target, >= 1 (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    args = parser.parse_args()
    if unknown := set(args.targets) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}; choose from {', '.join(TARGETS)}")
    if args.sample is not None and args.sample < 1:
        parser.error("--sample must be at least 1")
    print_line(
        f"{'target':<12}{'mutants':>9}{'killed':>9}{'survived':>10}{'timeout':>9}{'no test':>9}{'score':>8}  interval"
    )
    for name in args.targets or TARGETS:
        total, counts = test_target(name, args.processes, args.sample, args.seed)
        n_detected = counts["killed"] + counts["timeout"]
        n_executed = n_detected + counts["survived"]
        line = (
            f"{name:<12}{total:>9}{counts['killed']:>9}{counts['survived']:>10}{counts['timeout']:>9}"
            f"{counts['no_tests']:>9}{n_detected / n_executed if n_executed else 0.0:>8.0%}"
        )
        if args.sample is not None and args.sample < total and n_executed:
            share = proportion(n_detected, n_executed)
            line += f"  {share.low:.0%} to {share.high:.0%}"
        print_line(line)


def print_line(line: str) -> None:
    """Print a line, and flush the output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def test_target(name: str, processes: int, sample: int | None, seed: int) -> tuple[int, dict[str, int]]:
    """Test mutants of a target.

    Args:
        name: key of `TARGETS`.
        processes: number of concurrent mutants.
        sample: number of tested mutants; None: all.
        seed: seed of the sample.

    Returns:
        The number of mutants of the target, and the number of tested mutants by outcome.
    """
    modules, tests = TARGETS[name]
    copy = COPY_ROOT / name
    prepare(copy, modules, tests)
    mutmut = [sys.executable, "-m", "mutmut"]
    run = [*mutmut, "run", "--max-children", str(processes)]
    log = copy / "mutmut.log"
    with log.open("w") as lines:
        if sample is not None:
            # This command writes all mutants and runs all tests. It fails because no mutant has this name.
            subprocess.run([*run, "none"], cwd=copy, stdout=lines, stderr=lines, check=False)
            run += sample_names(list_mutants(copy), sample, seed)
        subprocess.run(run, cwd=copy, stdout=lines, stderr=lines, check=False)
    export = subprocess.run([*mutmut, "export-cicd-stats"], cwd=copy, capture_output=True, text=True, check=False)
    stats = copy / "mutants" / "mutmut-cicd-stats.json"
    if export.returncode or not stats.is_file():
        sys.exit(f"mutmut failed for {name}; see {log}")
    stat_counts = json.loads(stats.read_text())
    counts = {outcome: int(stat_counts.get(outcome, 0)) for outcome in OUTCOMES}
    if not any(counts.values()):
        sys.exit(f"mutmut tested no mutants of {name}; see {log}")
    return len(list_mutants(copy)), counts


def list_mutants(copy: Path) -> list[str]:
    """Return the names of all mutants that mutmut wrote in a copy."""
    files = sorted((copy / "mutants" / "src").rglob("*.py.meta"))
    return sorted(name for path in files for name in json.loads(path.read_text())["exit_code_by_key"])


def sample_names(names: list[str], n: int, seed: int) -> list[str]:
    """Sample `n` names by their hashes, so that most sampled names remain after a change of the code."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:n]


def prepare(copy: Path, modules: list[str], tests: list[str]) -> None:
    """Copy the repository for mutmut, and add its settings."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in COPIED_PATHS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    package_conf = copy / "src" / "llmrl" / "conf"  # a folder, as in an installed package
    if package_conf.is_symlink():
        package_conf.unlink()
    shutil.copytree(ROOT / "conf", package_conf)
    settings = {
        "source_paths": ["src/"],
        "only_mutate": [SOURCE + module for module in modules],
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": [
            *("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not long"),
            "--hypothesis-profile=mutants",
        ],
        "also_copy": [name for name in COPIED_PATHS if name != "src"],
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    with (copy / "pyproject.toml").open("a") as project:
        project.write("\n[tool.mutmut]\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
