"""`llmrl-finetune`: train the language model that proposes policy parameters, and evaluate it before and after.

Modules that are slow to import are imported in functions, so that `main` handles Ctrl-C during these imports, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmrl.cli.train import run_console_script, run_task
from llmrl.run.command_exit import handle_interrupt

if TYPE_CHECKING:
    from omegaconf import DictConfig


def finetune(config: DictConfig) -> float | None:
    """Compute the run of a config that Hydra has composed; return the scalar that a sweeper optimizes."""
    return run_task("llmrl-finetune", config)


@handle_interrupt("llmrl-finetune", composes_config=True)
def main() -> None:
    """Run the console script `llmrl-finetune`."""
    run_console_script("llmrl-finetune", finetune, "finetune")


if __name__ == "__main__":
    main()
