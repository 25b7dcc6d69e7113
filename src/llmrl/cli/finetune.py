"""`llmrl-finetune`: train the language model that proposes policy parameters, and evaluate it before and after.

Only Hydra is imported here: `--help`, `--cfg job` and shell completion must answer at once.
"""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from llmrl.cli import command
from llmrl.config.hydra_versions import BASE


@hydra.main(config_path="pkg://llmrl.conf", config_name="finetune", **BASE)
def finetune(config: DictConfig) -> float | None:
    """The task Hydra calls for every job; returns what a sweeper optimises."""
    return command.task("llmrl-finetune", config)


def main() -> None:
    """Console script."""
    command.console("llmrl-finetune", finetune, "finetune")


if __name__ == "__main__":
    main()
