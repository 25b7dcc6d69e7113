"""`llmrl-train`: compose an experiment from config groups and run it.

Nothing heavy is imported here: Ctrl-C is handled from the start of `main` on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmrl.cli import command
from llmrl.run.command_exit import handle_interrupt

if TYPE_CHECKING:
    from omegaconf import DictConfig


def train(config: DictConfig) -> float | None:
    """Run one job for Hydra; return the scalar that a sweeper optimizes."""
    return command.task("llmrl-train", config)


@handle_interrupt("llmrl-train", composes_config=True)
def main() -> None:
    """Run the console script `llmrl-train`."""
    command.console("llmrl-train", train, "train")


if __name__ == "__main__":
    main()
