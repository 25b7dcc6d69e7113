"""`llmrl-finetune`: train the language model that proposes policy parameters, and evaluate it before and after.

Nothing heavy is imported here: Ctrl-C is handled from the start of `main` on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmrl.cli.train import run_console_script, run_task
from llmrl.run.command_exit import handle_interrupt

if TYPE_CHECKING:
    from omegaconf import DictConfig


def finetune(config: DictConfig) -> float | None:
    """Run one job for Hydra; return the scalar that a sweeper optimizes."""
    return run_task("llmrl-finetune", config)


@handle_interrupt("llmrl-finetune", composes_config=True)
def main() -> None:
    """Run the console script `llmrl-finetune`."""
    run_console_script("llmrl-finetune", finetune, "finetune")


if __name__ == "__main__":
    main()
