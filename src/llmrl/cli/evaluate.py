"""`llmrl-evaluate`: play episodes with the agents of a run's checkpoint; print a table and record videos."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from llmrl.run.command_exit import console_command

if TYPE_CHECKING:
    from llmrl.evaluation.settings import EvaluationSettings


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    from llmrl.config.permissions import add_trust_option
    from llmrl.evaluation.settings import EvaluationSettings
    from llmrl.experiment.run_lookup import add_output_root_option

    parser = argparse.ArgumentParser(prog="llmrl-evaluate", description=__doc__)
    parser.add_argument(
        "run",
        type=Path,
        help="a run: its folder, outputs/<name>/<label>-<hash>/s<seed>, a folder that contains a single run, "
        "run:<hash>[/s<seed>] or latest:<name>",
    )
    add_output_root_option(parser)
    parser.epilog = (
        "suite=<name or .yaml file> evaluates the run by tests of generalization; suite.<key>=<value> changes its "
        "settings (docs/generalization.md)"
    )
    descriptions = read_argument_descriptions(EvaluationSettings)
    for setting in fields(EvaluationSettings):
        if setting.name != "trusted":
            flag = f"--{_FLAG_NAMES.get(setting.name, setting.name).replace('_', '-')}"
            default_text = ",".join(setting.default) if isinstance(setting.default, tuple) else setting.default
            default_note = "" if default_text in (None, False, "") else f" (default {default_text})"
            parser.add_argument(
                flag,
                dest=setting.name,
                default=argparse.SUPPRESS,  # `EvaluationSettings` has the defaults
                help=f"{descriptions[setting.name].rstrip('.')}{default_note}".replace("None", "the default"),
                **_get_type_arguments(setting.name, str(setting.type)),
            )
    add_trust_option(parser)
    return parser


_FLAG_NAMES = {"policies": "policy", "mechanisms": "mechanism"}
"""Names of flags that differ from the name of the setting: a flag in the singular takes one value or several."""


def _get_type_arguments(name: str, hint: str) -> dict[str, Any]:
    """Return the arguments of `add_argument` that follow from the type hint of a setting."""
    from llmrl.evaluation.settings import Mode

    if name == "policies":
        return {"type": lambda text: text.split(","), "metavar": "POLICY"}
    arguments_by_hint: dict[str, dict[str, Any]] = {
        "int": {"type": int, "metavar": "N"},
        "Mode": {"choices": get_args(Mode)},
        "bool": {"action": "store_true"},
        "bool | None": {"action": argparse.BooleanOptionalAction},
        "Sequence[str]": {"action": "append", "metavar": "KEY=VALUE" if name == "env" else name.upper()},
        "Path | None": {"type": Path, "metavar": "FOLDER"},
    }
    return arguments_by_hint.get(hint, arguments_by_hint["int"])


def read_argument_descriptions(documented_class: type) -> dict[str, str]:
    """Return the descriptions in the section `Args` of a class's docstring, by argument."""
    args_section = (inspect.getdoc(documented_class) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    paragraphs = re.split(r"^    (?=\w)", args_section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, _, text in (paragraph.partition(":") for paragraph in paragraphs)}


def parse_settings(args: argparse.Namespace) -> EvaluationSettings:
    """Return the settings of a parsed command line.

    Raises:
        ConfigError: a number is out of range.
    """
    from llmrl.evaluation.settings import EvaluationSettings

    names = [setting.name for setting in fields(EvaluationSettings) if setting.name in args]
    return EvaluationSettings(**{name: vars(args)[name] for name in names}, trusted=args.trust)


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Evaluate the run of a parsed command line; return the results (`evaluate_run`).

    Raises:
        LlmrlError: see `llmrl.evaluation.evaluate_run.evaluate_run`.
    """
    from llmrl.evaluation.evaluate_run import evaluate_run

    return evaluate_run(args.run, parse_settings(args), print_message)


def print_message(text: str, rows: Sequence[tuple[str, str]] = ()) -> None:
    """Print a table with `rows` and the title `text` to standard output; without rows, `text` to standard error."""
    from llmrl.display.console import print_fields

    if rows:
        print_fields(text, rows)
    else:
        sys.stderr.write(f"llmrl-evaluate: {text}\n")


def split_suite_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into the options `suite=` and `suite.<key>=`, without `suite.`, and all other arguments."""
    suite_options = [argument for argument in argv if argument.startswith(("suite=", "suite."))]
    other_arguments = [argument for argument in argv if argument not in suite_options]
    return [option.removeprefix("suite.") for option in suite_options], other_arguments


@console_command("llmrl-evaluate")
def main(argv: list[str] | None = None) -> None:
    """Run the console script `llmrl-evaluate`, with `argv` or else the process's arguments."""
    suite_options, arguments = split_suite_options(sys.argv[1:] if argv is None else argv)
    args = build_parser().parse_args(arguments)
    from llmrl.core.errors import ConfigError
    from llmrl.core.privacy import restrict_permissions_like
    from llmrl.display.console import print_line, print_report_table
    from llmrl.display.results import print_evaluation
    from llmrl.run.command_exit import exit_on_signal

    note = "the tests of the suite that had ended are written" if suite_options else "no results are written"
    with exit_on_signal("llmrl-evaluate", note):
        from llmrl.experiment.run_lookup import resolve_run_folder

        args.run = resolve_run_folder(args.run, args.output_root)
        restrict_permissions_like(args.run)
        if not suite_options:
            print_evaluation(evaluate(args))
            return
        from llmrl.evaluation.evaluate_suite import evaluate_suite
        from llmrl.evaluation.suite_results import build_suite_table

        suites = [option.removeprefix("suite=") for option in suite_options if option.startswith("suite=")]
        if not suites:
            raise ConfigError("suite.<key>=<value> needs a suite; add suite=<name>")
        suite_changes = [option for option in suite_options if not option.startswith("suite=")]
        results = evaluate_suite(args.run, suites[-1], parse_settings(args), print_message, suite_changes)
        print_report_table(build_suite_table(results))
        print_line(f"Saved in {results['out']}: results.json, table.csv, table.md")
