"""Small language model with the right reply format, and finished fine-tuning runs, shared by all tests."""

import numpy as np
import pytest

from shared_folders import shared_folder


@pytest.fixture(scope="session")
def proposer(tmp_path_factory):
    """Return the folder of a model that replies with two uniformly random integers from -6 to 6."""
    from tiny_proposers import make_proposer

    rng = np.random.default_rng(0)
    rows = ["[2, -3] -> -0.10", "[-6, 4] -> -15.21", "[0, 1] -> -6.03", "[5, -1] -> -5.12"]
    ask = 'of 100. Answer: {"reasoning": "<why>", "params": [<2 numbers>]}'
    pairs = []
    for _ in range(200):
        question = "\n".join([*rng.choice(rows, 3), f"3 {ask}"])
        reason = f"The best so far gave {rng.uniform(-17, 0):.2f}; this is another place to look."
        x, y = rng.integers(-6, 7, 2)
        pairs.append((question, f'{{"reasoning": "{reason}", "params": [{x}, {y}]}}'))
    return shared_folder(tmp_path_factory, "proposer", lambda folder: make_proposer(folder, pairs))


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def grpo(proposer, tmp_path_factory):
    """Return the folder of a finished GRPO run whose only reward is the return."""
    from tuned import find_finetuning_folder, finetune

    only = [f"rewards.{name}=0" for name in ("valid", "in_bounds", "improvement")]
    options = ("method.optimizer.steps=24", *only, "transfer=[other]", "checkpoint_seconds=99")
    return find_finetuning_folder(
        shared_folder(tmp_path_factory, "grpo", lambda folder: finetune(folder, proposer, "grpo", *options))
    )


@pytest.fixture(scope="session")
def sft(proposer, tmp_path_factory):
    """Return the folder of a finished supervised fine-tuning run."""
    from tuned import find_finetuning_folder, finetune

    steps = "method.optimizer.steps=12"
    return find_finetuning_folder(
        shared_folder(tmp_path_factory, "sft", lambda folder: finetune(folder, proposer, "sft", steps))
    )
