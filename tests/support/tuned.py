"""Fine-tuning runs inside a test process, as `llmrl-finetune` makes them."""

from __future__ import annotations

import json
from pathlib import Path

from experiments import comparable_metrics, compose, silent

HERE = Path(__file__).parents[1] / "finetuning"
COMMON = (
    f"hydra.searchpath=[file://{HERE / 'conf'}]",
    "env=target",
    "trusted_modules=[target_game]",
    "agent=linear",
    "agent.bias=false",
    "agent.decimals=0",
    f"prompts={HERE / 'prompts'}",
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
        "method.optimiser.batch=32",
        "method.optimiser.learning_rate=2e-3",
    ),
    "sft": (
        "method=sft",
        "method.texts=16",
        "method.optimiser.batch=16",
        "method.optimiser.learning_rate=3e-3",
    ),
}


def configured(root: Path, model: Path, *overrides: str) -> dict:
    """The resolved config of a run on the target game."""
    every = [*COMMON, f"output_root={root}", f"llm.model={model}", *overrides]
    return compose(*every, primary="finetune")


def finetune(root: Path, model: Path, method: str, *overrides: str) -> Path:
    """Run here and now; the run folder."""
    from experiments import run_experiment

    typed = [*QUICK[method], *overrides]
    run_experiment(configured(root, model, *typed), typed)
    return folder_of(root)


def folder_of(root: Path) -> Path:
    (folder,) = {path.parent for path in root.rglob("status.json") if "backup" not in str(path)}
    return folder


def silent_finetune(root: Path, model: Path, method: str, *overrides: str) -> None:
    """`finetune` for a child process whose output nobody reads."""
    silent()
    finetune(root, model, method, *overrides)


def lines(folder: Path) -> list[dict]:
    """The metrics of a run, line by line."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_same(one: Path, other: Path) -> None:
    """Metrics, adapter and results, bit for bit."""
    ours, theirs = comparable_metrics(one), comparable_metrics(other)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert {k: v for k, v in a.items() if not k.startswith("spent/")} == {
            k: v for k, v in b.items() if not k.startswith("spent/")
        }
    for name in ("adapter/adapter_model.safetensors", "adapter/adapter_config.json", "evaluation.json", "train.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
