"""`python -m llmrl <command> ...`: the commands of the package, also where their scripts are not on `PATH`."""

from __future__ import annotations

import sys
from importlib import import_module

from llmrl.run.command_exit import handle_interrupt

COMMANDS = {
    "train": ("llmrl.cli.train", "compose an experiment and run it, or a sweep of them"),
    "evaluate": ("llmrl.cli.evaluate", "play a finished run's agents, mechanisms or players again"),
    "sweep": ("llmrl.cli.sweep", "status, retry, cancel and logs of runs"),
    "report": ("llmrl.cli.sweep_report", "report of runs with figures and tables"),
    "llm": ("llmrl.cli.llm", "check and try language models, and sum up their calls"),
    "serve": ("llmrl.cli.serve", "serve an environment with the protocol of OpenEnv"),
    "finetune": ("llmrl.cli.finetune", "train the language model that proposes policies"),
}
"""Name of a command -> its module and description. Each is also a console script, such as `llmrl-train`."""


def main() -> None:
    """Run the command that the first argument names."""
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command == "--version":
        from llmrl import __version__

        sys.stdout.write(f"llmrl {__version__}\n")
    elif command in COMMANDS:
        sys.argv = [f"llmrl-{command}", *sys.argv[2:]]
        with handle_interrupt(sys.argv[0]):
            import_module(COMMANDS[command][0]).main()
    else:
        lines = [f"  {name:<9} {description}" for name, (_, description) in COMMANDS.items()]
        sys.stdout.write("\n".join(["python -m llmrl COMMAND ..., each with --help:", *lines, ""]))
        raise SystemExit(0 if command in ("--help", "-h") else 2)


if __name__ == "__main__":
    main()
