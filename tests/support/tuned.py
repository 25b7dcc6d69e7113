"""Fine-tuning runs in the test process, as in `llmrl-finetune`."""

from __future__ import annotations

import json
from pathlib import Path

from experiments import compose, load_comparable_metrics, silence_process

CONFIG_FOLDER = Path(__file__).parents[1] / "finetuning"
COMMON = (
    f"hydra.searchpath=[file://{CONFIG_FOLDER / 'conf'}]",
    "env=target",
    "trusted_modules=[target_game]",
    "agent=linear",
    "agent.bias=false",
    "agent.decimals=0",
    f"prompts={CONFIG_FOLDER / 'prompts'}",
    "principal.prompt=short",
    "principal.duplicates=accept",
    "llm.max_tokens=50",
    "hardware.cores=1",
    "dataset.trials=128",
    "dataset.episodes=2",
    "dataset.prompts=48",
    "dataset.held_out=24",
    "dataset.examples=3",
    "evaluation.rollouts=2",
    "evaluation.transfer_trials=64",
    "rewards.rollouts=2",
    "checkpoint_seconds=0",
)
QUICK = {
    "grpo": (
        "method=grpo",
        "method.prompts=4",
        "method.samples=8",
        "method.optimizer.batch=32",
        "method.optimizer.learning_rate=2e-3",
    ),
    "sft": (
        "method=sft",
        "method.texts=16",
        "method.optimizer.batch=16",
        "method.optimizer.learning_rate=3e-3",
    ),
}


def compose_finetune(root: Path, model: Path, *overrides: str) -> dict:
    """Return the resolved config of a run on the target game."""
    overrides_ = [*COMMON, f"output_root={root}", f"llm.model={model}", *overrides]
    return compose(*overrides_, primary="finetune")


def finetune(root: Path, model: Path, method: str, *overrides: str) -> Path:
    """Execute a fine-tuning run in this process and return the run folder."""
    from experiments import run_experiment

    arguments = [*QUICK[method], *overrides]
    run_experiment(compose_finetune(root, model, *arguments), arguments)
    return find_finetuning_folder(root)


def find_finetuning_folder(root: Path) -> Path:
    (folder,) = {path.parent for path in root.rglob("status.json") if "backup" not in str(path)}
    return folder


def finetune_silently(root: Path, model: Path, method: str, *overrides: str) -> None:
    """Execute a fine-tuning run in a child process whose output is discarded."""
    silence_process()
    finetune(root, model, method, *overrides)


def load_metrics(folder: Path) -> list[dict]:
    """Return the lines of the metrics of a run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_equal_runs(first: Path, second: Path) -> None:
    """Assert that metrics, adapter and results of two runs are bitwise equal."""
    first_metrics, second_metrics = load_comparable_metrics(first), load_comparable_metrics(second)
    assert len(first_metrics) == len(second_metrics)
    for a, b in zip(first_metrics, second_metrics, strict=True):
        assert {k: v for k, v in a.items() if not k.startswith("usage/")} == {
            k: v for k, v in b.items() if not k.startswith("usage/")
        }
    for name in ("adapter/adapter_model.safetensors", "adapter/adapter_config.json", "evaluation.json", "train.jsonl"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
