"""Record configs, metrics and prompts of short runs, and compare them after a change that must not alter results.

    python scripts/regression.py record build/regression
    python scripts/regression.py compare build/regression

`record.json` contains the resolved config of every preset and option, digests of the metrics of short runs of all
families (without wall-clock times), and digests of all prompts of these runs. `compare` prints all differences, and
exits with code 1 if there are any. Numbers are compared bit for bit, so both commands must run on the same machine with
the same libraries.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
QUICK = ("+debug=quick", "loggers=[jsonl]", "name=regression")
WALL_CLOCK = "time/"
"""Prefix of metrics that depend on the speed of the machine."""

RUNS: tuple[tuple[str, ...], ...] = (
    *((f"env={env}", "agent=ppo", "principal=ucb") for env in ("cleanup", "harvest", "escape_room", "fishery")),
    *((f"env={env}", "agent=ppo", "principal=gp") for env in ("pasture", "pollution", "tax_economy")),
    *(
        ("env=cleanup", f"principal={name}")
        for name in ("thompson", "egreedy", "cem", "cmaes", "dual_rl", "random", "fixed", "sobol", "scan", "none")
    ),
    ("env=escape_room", "principal=metagrad"),
    ("env=tax_economy", "principal=saez"),
    ("env=cleanup", "principal=llm", "llm=scripted"),
    ("env=harvest", "principal=llm", "llm=scripted", "design.candidates=2"),
    ("env=escape_room", "principal=llm", "llm=scripted"),
    ("env=fishery", "principal=vote", "agent=llm_player", "llm=scripted"),
    ("env=cleanup", "principal=vote", "llm=scripted"),
    ("env=cleanup", "principal=ucb", "design.candidates=2", "design.replicates=2", "env.n_envs=8"),
    ("env=cleanup", "principal=ucb", "agent=ippo"),
    ("env=cleanup", "principal=ucb", "agent=pg"),
    ("env=cleanup", "principal=ucb", "agent=heuristic"),
    ("env=cleanup_pixels", "principal=ucb"),
    ("env=simple_doorkey", "teacher=oracle"),
    ("env=lava_doorkey", "teacher=llm", "llm=scripted"),
    ("env=colored_doorkey", "teacher=offline", "llm=scripted"),
    ("env=two_door", "agent=student_lstm"),
    ("env=unlock_pickup", "agent=student_mlp"),
    ("env=simple_spread", "agent=ppo"),
    ("env=simple_tag", "agent=mappo"),
    ("env=simple_speaker_listener", "teacher=llm", "llm=scripted"),
    ("env=goto_red_ball", "agent=symbolic_ppo"),
    ("env=goto_red_ball", "agent=llm_ppo", "llm=small_scorer"),
    ("env=goto_local", "agent=drrn"),
    ("env=goto_local", "agent=bot"),
    ("env=cartpole", "agent=ppo"),
    ("env=cartpole", "agent=ppo", "agent.memory=16"),
    ("env=cartpole", "agent=ppo", "agent.ppo.target_kl=0.01", "agent.ppo.normalize_values=true"),
    ("env=cartpole", "agent=ppo", "agent.ppo.scale_rewards=true", "agent.normalize_observations=true"),
    ("env=simple_spread", "agent=ppo", "agent.ppo.joint_ratio=true"),
    ("env=inverted_pendulum", "agent=gaussian_ppo"),
    ("env=mountain_car", "agent=random"),
    ("env=cartpole", "agent=linear", "principal=llm", "llm=scripted"),
    ("env=frozen_lake", "agent=tabular", "principal=llm", "llm=scripted"),
    ("env=maze", "agent=tabular", "principal=cem"),
    ("env=swimmer", "agent=linear", "principal=cmaes"),
    ("env=cartpole", "agent=projection", "principal=random"),
    ("env=taxi", "agent=llm_player", "llm=scripted"),
    ("env=blackjack", "agent=llm_player", "llm=scripted"),
    ("env=minigrid", "agent=llm_player", "llm=scripted"),
    ("env=babyai_text", "agent=llm_player", "llm=scripted"),
    ("env=harvest", "agent=llm_player", "llm=scripted"),
    ("env=tictactoe", "agent=llm_player", "llm=scripted"),
    ("experiment=citizens/vote",),
    ("experiment=citizens/mixed",),
    ("experiment=teacher/teams",),
)


def compose_configs() -> dict[str, str]:
    """Return the resolved config of every experiment and of every option of the main groups, as JSON by override."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
    from support.experiments import compose

    from llmrl.core.option_files import list_nested_options, list_option_names

    presets = ["none", *list_nested_options("experiment")]
    options = [("experiment", name) for name in presets]
    options += [
        (group, name) for group in ("env", "agent", "principal", "llm", "teacher") for name in list_option_names(group)
    ]
    cases = {f"{group}={name}": (f"{group}={name}",) for group, name in options}
    configs: dict[str, str] = {}
    for name, overrides in cases.items():
        try:
            config: Any = compose(*overrides)
            for key in ("regime_name", "regime_noise"):  # descriptions of an option; its values are other keys
                config.pop(key, None)
        except Exception as error:  # noqa: BLE001  failures are recorded
            config = type(error).__name__
        configs[name] = json.dumps(config, sort_keys=True, default=str)
    return configs


def compute_run_digests(overrides: tuple[str, ...]) -> dict[str, str]:
    """Run an experiment, and return the digests of its metrics and prompts."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llmrl.cli.train", *overrides, *QUICK, f"output_root={folder}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
        if process.returncode:
            return {"error": process.stderr.strip().splitlines()[-1][:200] if process.stderr.strip() else "no message"}
        metrics = [
            {key: value for key, value in json.loads(line).items() if not key.startswith(WALL_CLOCK)}
            for path in sorted(Path(folder).rglob("metrics.jsonl"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        prompts = [
            json.loads(line).get("messages")
            for path in sorted(Path(folder).rglob("llm_calls*.jsonl"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        return {
            "rows": str(len(metrics)),
            "metrics": compute_digest(metrics),
            "prompts": f"{len(prompts)} {compute_digest(sorted(json.dumps(messages) for messages in prompts))}",
        }


def compute_digest(value: Any) -> str:
    """Return a short digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def run_experiments(workers: int, only: str) -> dict[str, dict[str, str]]:
    """Return the digests of all runs of `RUNS` whose overrides contain `only`, by overrides."""
    selected = [overrides for overrides in RUNS if only in " ".join(overrides)]
    start = time.monotonic()
    digests: dict[str, dict[str, str]] = {}
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for overrides, run_digests in zip(selected, pool.map(compute_run_digests, selected), strict=True):
            digests[" ".join(overrides)] = run_digests
            seconds = time.monotonic() - start
            sys.stderr.write(f"{len(digests)}/{len(selected)} {seconds:.0f} s {' '.join(overrides)}: {run_digests}\n")
    return digests


def format_difference(recorded: Any, current: Any) -> str:
    """Format the difference between two records; the difference between two configs has a line for each key."""
    if recorded is None:
        return "  is new"
    if isinstance(recorded, str) and isinstance(current, str):
        old, new = (dict(iterate_leaves(json.loads(config))) for config in (recorded, current))
        keys = [key for key in {**old, **new} if old.get(key, "absent") != new.get(key, "absent")]
        return "\n".join(f"  {key}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}" for key in keys)
    return f"  recorded {recorded}\n  current  {current}"


def iterate_leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for all values of a config."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from iterate_leaves(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, node


def main() -> int:
    """Record or compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2, help="number of concurrent runs (default: 2)")
    parser.add_argument("--only", default="", help="only runs whose overrides contain this text")
    args = parser.parse_args()
    current = {"configs": compose_configs(), "runs": run_experiments(args.workers, args.only)}
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "record.json"
    if args.action == "record":
        path.write_text(json.dumps(current, indent=1), encoding="utf-8")
        return 0
    recorded = json.loads(path.read_text(encoding="utf-8"))
    differences = [
        f"{kind}: {name}\n{format_difference(recorded[kind].get(name), value)}"
        for kind, values in current.items()
        for name, value in values.items()
        if recorded[kind].get(name) != value
    ]
    differences += [f"configs: {name} is missing" for name in recorded["configs"] if name not in current["configs"]]
    sys.stdout.write("".join(f"{difference}\n" for difference in differences) + f"{len(differences)} differences\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
