"""`llmrl-train`: compose an experiment from config groups and run it.

Only Hydra is imported here, because `--help`, `--cfg job` and shell completion must respond at once.
"""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from llmrl.cli import command
from llmrl.config.hydra_versions import BASE


@hydra.main(config_path="pkg://llmrl.conf", config_name="train", **BASE)
def train(config: DictConfig) -> float | None:
    """Run one job for Hydra; return the scalar that a sweeper optimises."""
    return command.task("llmrl-train", config)


def main() -> None:
    """Run the console script `llmrl-train`."""
    command.console("llmrl-train", train, "train")


if __name__ == "__main__":
    main()
