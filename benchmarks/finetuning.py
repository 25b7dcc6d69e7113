"""Fine-tuning of a tiny proposer: both methods, before and after, on the training task and on another one.

The model, two layers and 106 thousand weights, is trained from scratch here, on prompts with made-up histories and
replies with parameters drawn at random: it knows the form of a reply and nothing of any game. Then it is fine-tuned for
CartPole (a linear policy of eight whole numbers, prompt `numeric`), by imitation and by reinforcement learning, as
`llmrl-finetune` does it, and asked about MountainCarContinuous (two whole numbers) as well. It shows that the machinery
learns; it says nothing of language models.

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
    # Returns of CartPole are mostly far below the highest: ranks tell proposals apart where scaled returns hardly do.
    "grpo": [
        "method=grpo",
        "method.optimizer.learning_rate=1e-3",
        "method.kl=0.02",
        "method.prompts=4",
        "method.optimizer.batch=32",
        "rewards.rank=2",
    ],
}
MEASURES = ("valid_rate", "return", "improvement_rate", "score")


def make_examples(env: str, low: float, high: float, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Return prompts about `env` with random histories, and replies with random numbers."""
    from contextlib import ExitStack

    from llmrl.experiment.models import build_model
    from llmrl.experiment.resources import RunResources
    from llmrl.finetuning.application import _build_task
    from llmrl.finetuning.trials import ParameterTrial, ProposalExample

    config = compose(f"env={env}", *POLICY, "llm=scripted", "hardware.cores=1")
    means = RunResources(config, build_model)
    task = _build_task(config, means, config, config["principal"], means.checked_model, ExitStack(), "")
    task.prompt_format.proposer.on_search_start(100, 20)
    space = task.space

    def vector() -> np.ndarray:
        return space.round_values(rng.uniform(space.low - 0.5, space.high + 0.5))

    pairs = []
    for _ in range(PAIRS):
        history = tuple(ParameterTrial(vector(), rng.uniform(low, high, 1)) for _ in range(EXAMPLES_PER_PROMPT))
        prompt = task.prompt_format.make_prompt(ProposalExample(0, history, ParameterTrial(vector(), np.zeros(1))))
        pairs.append((prompt.text, str(task.prompt_format.target_reply(prompt))))
    return pairs


def finetune(base: Path, root: Path, method: str, steps: int, seed: int) -> tuple[dict[str, Any], float]:
    """Return the results of a run, and its duration, seconds (almost zero if it was finished before)."""
    from llmrl.experiment.experiment import Experiment

    typed = [*COMMON, *METHODS[method], f"method.optimizer.steps={steps}", f"seed={seed}", f"llm.model={base}"]
    start = time.monotonic()
    config = compose(*typed, f"output_root={root}", "transfer=[mountain_car_continuous]", primary="finetune")
    # The other task's policy is of the same kind.
    config["transfer"]["mountain_car_continuous"]["agent"] |= {"bias": False, "decimals": 0}
    run = Experiment(config, typed).run().folder
    return json.loads((run / "evaluation.json").read_text()), time.monotonic() - start


def format_interval(row: dict[str, Any]) -> str:
    return "-" if row["mean"] is None else f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--folder", type=Path, default=None, help="where the base model and the runs go (default: temporary)"
    )
    p.add_argument("--base-steps", type=int, default=300)
    p.add_argument("--sft-steps", type=int, default=600)
    p.add_argument("--grpo-steps", type=int, default=300)
    p.add_argument("--seeds", type=int, nargs="+", default=[0])
    args = p.parse_args()
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
                    cells = [format_interval(result[policy][measure]) for measure in MEASURES]
                    rows.append([f"{method}, seed {seed}", f"{steps} steps, {seconds:.0f} s", name, policy, *cells])
    print("\n| method | training | task | | " + " | ".join(name.replace("_", " ") for name in MEASURES) + " |")
    print("|---" * (4 + len(MEASURES)) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
