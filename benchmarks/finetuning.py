"""Fine-tuning of a small proposer with both methods, evaluated on the training task and on another task.

The model has two layers and 106,000 parameters. It is first trained from scratch on prompts with synthetic histories
and replies with random parameters, so that it knows only the format of replies. Then it is fine-tuned for CartPole (a
linear policy of eight integers, prompt `numeric`) by supervised fine-tuning and by reinforcement learning, like
`llmrl-finetune`, and evaluated on CartPole and on MountainCarContinuous (two integers). The benchmark verifies the
training code; its results do not generalize to pretrained language models.

    python benchmarks/finetuning.py --sft-steps 600 --grpo-steps 300 --seeds 0
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS / "support"))

from experiments import compose  # noqa: E402
from tiny_proposers import make_proposer  # noqa: E402

EXAMPLES_PER_PROMPT, PAIRS = 3, 600
POLICY = ["principal=llm", "agent=linear", "agent.bias=false", "agent.decimals=0", "principal.prompt=numeric"]
COMMON = [
    *POLICY,
    "env=cartpole",
    "hardware.cores=1",
    "hardware.threads=1",
    "llm.max_tokens=80",
    "dataset.trials=1024",
    "dataset.held_out=64",
    f"dataset.examples={EXAMPLES_PER_PROMPT}",
    "evaluation.transfer_trials=256",
]
METHODS = {
    "sft": ["method=sft", "method.optimizer.learning_rate=3e-3", "method.optimizer.batch=16"],
    # Most returns of CartPole are far below the maximum: ranks separate proposals better than scaled returns.
    "grpo": [
        "method=grpo",
        "method.optimizer.learning_rate=1e-3",
        "method.kl=0.02",
        "method.prompts=4",
        "method.optimizer.batch=32",
        "rewards.rank=2",
    ],
}
METRICS = ("valid_rate", "return", "improvement_rate", "score")


def make_examples(env: str, low: float, high: float, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Return (prompt, reply) pairs for an environment, with random histories and random parameters.

    Args:
        env: environment option.
        low, high: range of the returns in histories.
        rng: random number generator.
    """
    from contextlib import ExitStack

    from llmrl.experiment.models import build_model
    from llmrl.experiment.resources import RunResources
    from llmrl.finetuning.application import _build_task
    from llmrl.finetuning.trials import ParameterTrial, ProposalExample

    config = compose(f"env={env}", *POLICY, "llm=scripted", "hardware.cores=1")
    resources = RunResources(config, build_model)
    task = _build_task(config, resources, config, config["principal"], resources.checked_model, ExitStack(), "")
    task.prompt_format.proposer.on_search_start(100, 20)
    space = task.space

    def sample_vector() -> np.ndarray:
        return space.round_values(rng.uniform(space.low - 0.5, space.high + 0.5))

    pairs = []
    for _ in range(PAIRS):
        history = tuple(ParameterTrial(sample_vector(), rng.uniform(low, high, 1)) for _ in range(EXAMPLES_PER_PROMPT))
        prompt = task.prompt_format.make_prompt(
            ProposalExample(0, history, ParameterTrial(sample_vector(), np.zeros(1)))
        )
        pairs.append((prompt.text, str(task.prompt_format.make_target_reply(prompt))))
    return pairs


def finetune(base: Path, root: Path, method: str, steps: int, seed: int) -> tuple[dict[str, Any], float]:
    """Fine-tune a model, and return the evaluation and the duration in seconds (almost zero if already finished)."""
    from llmrl.experiment.experiment import Experiment

    overrides = [*COMMON, *METHODS[method], f"method.optimizer.steps={steps}", f"seed={seed}", f"llm.model={base}"]
    start = time.monotonic()
    config = compose(*overrides, f"output_root={root}", "transfer=[mountain_car_continuous]", primary="finetune")
    # The policy of the transfer task has the same options.
    config["transfer"]["mountain_car_continuous"]["agent"] |= {"bias": False, "decimals": 0}
    run = Experiment(config, overrides).run().folder
    return json.loads((run / "evaluation.json").read_text()), time.monotonic() - start


def format_interval(row: dict[str, Any]) -> str:
    return "-" if row["mean"] is None else f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=None, help="folder for the base model and the runs (default: temporary)"
    )
    parser.add_argument("--base-steps", type=int, default=300)
    parser.add_argument("--sft-steps", type=int, default=600)
    parser.add_argument("--grpo-steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp())
    base = folder / f"base-{args.base_steps}"
    if not (base / "config.json").exists():
        rng, start = np.random.default_rng(0), time.monotonic()
        pairs = make_examples("cartpole", 8, 200, rng) + make_examples("mountain_car_continuous", -90, 90, rng)
        make_proposer(base, pairs, args.base_steps, window=1024, batch=8)
        print(f"base: {args.base_steps} steps, {time.monotonic() - start:.0f} s")
    rows = []
    for seed in args.seeds:
        for method, steps in (("sft", args.sft_steps), ("grpo", args.grpo_steps)):
            if not steps:
                continue
            results, seconds = finetune(base, folder / f"{method}-{seed}", method, steps, seed)
            for name, result in results.items():
                for policy in ("before", "after", "random", "incumbent"):
                    cells = [format_interval(result[policy][metric]) for metric in METRICS]
                    rows.append([f"{method}, seed {seed}", f"{steps} steps, {seconds:.0f} s", name, policy, *cells])
    print("\n| method | training | task | | " + " | ".join(name.replace("_", " ") for name in METRICS) + " |")
    print("|---" * (4 + len(METRICS)) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
