"""`llmrl-evaluate`: play a run's checkpoint for N seeded episodes; a table, and videos on request."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from llmrl.run.command_exit import console_command

if TYPE_CHECKING:
    from llmrl.evaluation.settings import EvaluationSettings


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from llmrl.config.permissions import add_trust
    from llmrl.evaluation.settings import EvaluationSettings
    from llmrl.experiment.run_lookup import add_root

    p = argparse.ArgumentParser(prog="llmrl-evaluate", description=__doc__)
    p.add_argument(
        "run",
        type=Path,
        help="a run: its folder, outputs/<name>/<label>-<hash>/s<seed>, a folder around a single one, "
        "run:<hash>[/s<seed>] or latest:<name>; with a suite all runs in a folder",
    )
    p.add_argument(
        "others", type=Path, nargs="*", default=[], help="further runs, with a suite: other seeds, other agents"
    )
    add_root(p)
    p.epilog = (
        "suite=<name or .yaml file> evaluates runs by tests of generalization; suite.<key>=<value> changes its "
        "settings (docs/generalization.md)"
    )
    descriptions = argument_descriptions(EvaluationSettings)
    for setting in fields(EvaluationSettings):
        if setting.name != "trusted":
            flag = f"--{_FLAGS.get(setting.name, setting.name).replace('_', '-')}"
            default = "" if setting.default in (None, False, ()) else f" (default {_default_text(setting.default)})"
            help_text = f"{descriptions[setting.name].rstrip('.')}{default}"
            # Settings that are not typed have their defaults.
            kinds: dict[str, Any] = {
                "dest": setting.name,
                "default": argparse.SUPPRESS,
                "help": help_text.replace("None", "the default"),
            }
            p.add_argument(flag, **kinds, **_argument_kind(setting.name, str(setting.type)))
    add_trust(p)
    return p


_FLAGS = {"policies": "policy", "mechanisms": "mechanism"}
"""Settings whose flag has another name, because it takes one value, or several with commas."""


def _argument_kind(name: str, hint: str) -> dict[str, Any]:
    """Return the arguments of `add_argument` for a setting with a type hint."""
    from llmrl.evaluation.settings import Mode

    if name == "policies":
        return {"type": lambda text: text.split(","), "metavar": "POLICY"}
    kinds: dict[str, dict[str, Any]] = {
        "int": {"type": int, "metavar": "N"},
        "Mode": {"choices": get_args(Mode)},
        "bool": {"action": "store_true"},
        "bool | None": {"action": argparse.BooleanOptionalAction},
        "Sequence[str]": {"action": "append", "metavar": "KEY=VALUE" if name == "env" else name.upper()},
        "Path | None": {"type": Path, "metavar": "FOLDER"},
    }
    return kinds.get(hint, kinds["int"])


def _default_text(default: object) -> str:
    return ",".join(default) if isinstance(default, tuple) else str(default)


def argument_descriptions(documented: type) -> dict[str, str]:
    """Return the descriptions in the section `Args` of a class's docstring, by argument."""
    section = (inspect.getdoc(documented) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^    (?=\w)", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, _, text in (entry.partition(":") for entry in entries)}


def settings_of(args: argparse.Namespace) -> EvaluationSettings:
    """Return the settings of a parsed command line.

    Raises:
        ConfigError: a number is out of range.
    """
    from llmrl.evaluation.settings import EvaluationSettings

    typed = {setting.name: vars(args)[setting.name] for setting in fields(EvaluationSettings) if setting.name in args}
    return EvaluationSettings(**typed, trusted=args.trust)


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Evaluate the run of a parsed command line; return the results as they were saved.

    Raises:
        LlmrlError: several runs without a suite, or as `llmrl.evaluation.evaluate_run.evaluate_run`.
    """
    from llmrl.core.errors import ConfigError
    from llmrl.evaluation.evaluate_run import evaluate_run

    if args.others:
        raise ConfigError("several runs can only be evaluated by a suite; add e.g. suite=babyai_text")
    return evaluate_run(args.run, settings_of(args), show)


def show(text: str, rows: Sequence[tuple[str, str]] = ()) -> None:
    """Print a message of a running evaluation: tables to standard output, lines to standard error."""
    from llmrl.display.console import print_rows

    if rows:
        print_rows(text, rows)
    else:
        sys.stderr.write(f"llmrl-evaluate: {text}\n")


_WORDS = ("suite=", "suite.")


def split_words(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of a command line that are about the suite, without their prefix `suite.`, and all others."""
    suite_words = [word for word in argv if word.startswith(_WORDS)]
    return [word.removeprefix("suite.") for word in suite_words], [word for word in argv if word not in suite_words]


def print_suite(results: Mapping[str, Any]) -> None:
    """Print the table of a suite and the place of its files."""
    from llmrl.display.console import print_line, print_report_table
    from llmrl.evaluation.suite_results import suite_table

    print_report_table(suite_table(results))
    print_line(f"Saved in {results['out']}: results.json, table.csv, table.md")


@console_command("llmrl-evaluate")
def main(argv: list[str] | None = None) -> None:
    """Run the console script `llmrl-evaluate`, with `argv` or else the process's arguments."""
    words, rest = split_words(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(rest)
    from llmrl.core.errors import ConfigError
    from llmrl.core.privacy import keep_private_like
    from llmrl.display.results import print_evaluation
    from llmrl.run.command_exit import exit_on_signal

    note = "tests of a suite that were over are written" if words else "nothing of it is written"
    with exit_on_signal("llmrl-evaluate", note):
        from llmrl.experiment.run_lookup import folder_of, run_folder_of
        from llmrl.results.run_records import find_runs

        if words:
            folders = [folder_of(argument, args.output_root) for argument in (args.run, *args.others)]
            args.run, *args.others = [run for folder in folders for run in find_runs(folder) or [folder]]
        else:
            args.run = run_folder_of(args.run, args.output_root)
        keep_private_like(args.run)
        if words:
            from llmrl.evaluation.evaluate_suite import evaluate_suite

            suites = [word.removeprefix("suite=") for word in words if word.startswith("suite=")]
            if not suites:
                raise ConfigError("suite.<key>=<value> needs a suite; add suite=<name>")
            changes = [word for word in words if not word.startswith("suite=")]
            for results in evaluate_suite([args.run, *args.others], suites[-1], settings_of(args), show, changes):
                print_suite(results)
        else:
            print_evaluation(evaluate(args))
