"""`--help`, `--list`, `--explain` and `--version` of commands that compose an experiment.

The texts are generated from the option files.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from llmrl.config.option_docs import DocumentedKey

GROUP_DESCRIPTIONS = {
    "env": "environment",
    "agent": "agents, and how they learn",
    "regime": "pre-training of agents, schedule and objective; its default depends on env=; none removes it",
    "principal": "proposer of taxes, incentives or policy parameters",
    "teacher": "adviser of a student while it learns",
    "llm": "language model of principals, teachers and players",
    "hardware": "machine or cluster that computes the runs",
    "loggers": "metric loggers: loggers=[jsonl,tensorboard,wandb]",
    "method": "method of fine-tuning a proposer",
    "dataset": "data of fine-tuning",
    "debug": "small sizes: +debug=quick",
}
"""Config groups with their descriptions, in the order of `--help`."""

LISTED_GROUPS = (*GROUP_DESCRIPTIONS, "experiment", "treatment")
"""Groups that `--list` accepts."""

EXAMPLES_BY_COMMAND = {
    "train": (
        ("env=cleanup principal=llm", "a principal governs a society; llm=scripted, the default, needs no key"),
        ("env=cleanup principal=llm llm=gpt4o dry_run=true", "the plan, with calls and price; runs nothing"),
        ("--multirun principal=ucb,thompson,llm seed=0,1,2 hardware=local", "a sweep: nine runs, in parallel"),
        (
            "--multirun experiment=first/teacher hardware=local",
            "a small study that runs in five minutes, with figure and table",
        ),
        ("env=taxi agent=llm_player play.videos=1", "a language model plays, and a video shows what it thought"),
    ),
    "finetune": (
        ("env=cartpole agent=linear llm.model=Qwen/Qwen2.5-1.5B-Instruct", "train a proposer of policies"),
        ("method=sft dataset=random", "supervised fine-tuning on good proposals instead of reinforcement learning"),
        ("env=cartpole agent=linear llm.model=<path> dry_run=true", "the plan; trains nothing"),
    ),
}
"""Examples of arguments with descriptions, by the primary config of a command."""

FLAG_DESCRIPTIONS = (
    ("--list GROUP", "what each option of a group is; experiment and treatment are groups, too"),
    ("--explain GROUP=OPTION", "meaning, default, range and file of each option of a chosen config"),
    ("--cfg job", "the composed config"),
    ("--multirun", "every combination of values with commas; the same command again computes what is missing"),
    ("--version", "the version of llmrl"),
    ("--hydra-help", "Hydra's own flags"),
)
EXPLAIN_COLUMNS = ("key", "value", "type", "meaning", "file")
"""Columns of `--explain`."""
GROUPS_BY_COMMAND: dict[str, tuple[str, ...]] = {
    "train": ("env", "agent", "regime", "principal", "teacher", "llm", "hardware", "loggers", "debug"),
    "finetune": ("env", "agent", "method", "dataset", "llm", "hardware", "loggers", "debug"),
}
"""Config groups that a command accepts, by its primary config."""


def print_help_if_requested(command: str, primary: str, arguments: Sequence[str]) -> bool:
    """Print help, a list of options or the version if `arguments` request one of them; return whether they do.

    Args:
        command: name of the command, e.g. `llmrl-train`.
        primary: primary config of the command, `train` or `finetune`.
        arguments: arguments of the command line.

    Raises:
        ConfigError: there is no such group to list.
    """
    if "--version" in arguments:
        from llmrl import __version__

        _print(f"llmrl {__version__}")
    elif "--help" in arguments or "-h" in arguments:
        _print(format_help_page(command, primary, _get_output_width()))
    elif "--list" in arguments:
        list_arguments = arguments[list(arguments).index("--list") + 1 :]
        if len(list_arguments) != 1:
            raise ConfigError(f"--list takes one group: {', '.join(LISTED_GROUPS)}")
        _print(format_option_list(list_arguments[0], _get_output_width()))
    else:
        return False
    return True


def format_help_page(command: str, primary: str, width: int) -> str:
    """Return the help of a command, in lines of at most `width` characters."""
    lines = [f"{command} composes an experiment from one option of each group and runs it.", "", "Examples"]
    for arguments, description in EXAMPLES_BY_COMMAND[primary]:
        lines += [f"  {command} {arguments}", *_wrap(description, "      ", width)]
    lines += ["", f"Groups, as group=option ({command} --list env says what each option is); debug as +debug=option"]
    for group in GROUPS_BY_COMMAND[primary]:
        names = ", ".join(list_all_option_names(group))
        lines += [f"  {group:<10} {GROUP_DESCRIPTIONS[group]}", *_wrap(names, "             ", width)]
    lines += ["", "Studies, as experiment=family/name: settings of a published or measured comparison"]
    for family, studies in list_studies_by_family().items():
        lines += _wrap(", ".join(studies), f"  {family + '/':<14} ", width)
    note = (
        "docs/studies.md lists the treatments that each study accepts; docs/results/index.md shows the results of the "
        "five-minute runs."
    )
    lines += [*_wrap(note, "  ", width), "", "Flags"]
    lines += [line for flag, description in FLAG_DESCRIPTIONS for line in _wrap(description, f"  {flag:<24} ", width)]
    lines += [
        "",
        "Every option is listed with its meaning and range in docs/options.md; key=value overrides any of them.",
    ]
    return "\n".join(lines)


def format_option_list(group: str, width: int) -> str:
    """Return the options of a group as text: each name with the first sentence of the header of its file.

    Raises:
        ConfigError: there is no such group.
    """
    from llmrl.config.option_docs import read_description
    from llmrl.core.option_files import find_file, get_root, list_nested_options, list_subgroups

    family = group.removeprefix("experiment/")
    if group == "experiment":
        option_names = list_nested_options("experiment")
    elif group in LISTED_GROUPS or any(group in list_subgroups(name) for name in GROUP_DESCRIPTIONS):
        option_names = list_all_option_names(group)
    elif group.startswith("experiment/") and family in list_studies_by_family():
        group, option_names = "experiment", [f"{family}/{name}" for name in list_studies_by_family()[family]]
    else:
        raise ConfigError(f"there is no group {group!r}; available groups: {', '.join(LISTED_GROUPS)}")
    name_width = max(map(len, option_names))
    lines = []
    for name in option_names:
        path = get_root() / group / f"{name}.yaml"
        header_text = read_description(path) if find_file(path) is not None else "From an installed package."
        first_sentence, separator, _ = header_text.partition(". ")
        lines += _wrap(first_sentence + separator.strip(), f"{name:<{name_width}}  ", width)
    return "\n".join(lines)


def list_all_option_names(group: str) -> list[str]:
    """Return the names of the options of a group, including those of installed packages."""
    from llmrl.config.installed_options import list_installed_options
    from llmrl.core.option_files import list_option_names

    return sorted({*list_option_names(group), *list_installed_options(group)})


def list_studies_by_family() -> dict[str, list[str]]:
    """Return the families of studies, each with the names of its studies."""
    from llmrl.core.option_files import list_option_names, list_subgroups

    return {group.partition("/")[2]: list_option_names(group) for group in list_subgroups("experiment")}


def _wrap(text: str, prefix: str, width: int) -> list[str]:
    """Return the lines of a wrapped text; the first one begins with `prefix`, the others are indented by its width."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=prefix,
        subsequent_indent=" " * len(prefix),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _get_output_width() -> int:
    """Return the width of the terminal in characters, at most 140; 100 without a terminal."""
    return min(shutil.get_terminal_size((100, 24)).columns, 140) if sys.stdout.isatty() else 100


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The reader has closed the pipe. Python flushes the buffer at exit, which must not raise the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explain_options(primary: str, arguments: Sequence[str]) -> None:
    """Print the documentation of the options that `arguments` choose (`env=cleanup`) or name (`design.candidates`).

    Without such arguments, all options are printed.

    Args:
        primary: primary config of the command, `train` or `finetune`.
        arguments: arguments of the command line, without `--explain`.

    Raises:
        ConfigError: an option or key does not exist, or an argument has several values, as for a sweep.
    """
    from hydra.errors import HydraException

    from llmrl.config.option_docs import document_config
    from llmrl.config.overrides import parse_config_dirs

    positional_arguments = [argument for argument in arguments if not argument.startswith("-")]
    overrides = [argument for argument in positional_arguments if "=" in argument]
    keys = [argument for argument in positional_arguments if "=" not in argument and not Path(argument).is_dir()]
    try:
        documents = document_config(primary, overrides, parse_config_dirs(arguments))
    except HydraException as error:
        raise ConfigError(" ".join(str(error).split())) from error
    if not keys:
        option_keys = [argument.partition("=")[0].lstrip("+").partition("@")[0] for argument in overrides]
        keys = [key for key in option_keys if key != "experiment"]
    selected = [
        document for document in documents.values() if not keys or any(_is_under_key(document.key, key) for key in keys)
    ]
    if missing := [key for key in keys if not any(_is_under_key(document.key, key) for document in selected)]:
        raise ConfigError(format_unknown_key_message(missing[0], documents))
    targets = {
        key.removesuffix("._target_"): str(document.value) for key, document in documents.items() if "_target_" in key
    }
    _print_documents([document for document in selected if document.is_leaf or document.meaning], targets)


def _is_under_key(key: str, prefix: str) -> bool:
    return key == prefix or key.startswith(f"{prefix}.")


def format_unknown_key_message(key: str, keys: Iterable[str]) -> str:
    """Return an error message for a key that does not exist."""
    import difflib

    names = list(keys)
    same_last_part = [name for name in names if name.rpartition(".")[2] == key.rpartition(".")[2]]
    similar_keys = same_last_part or difflib.get_close_matches(key, names, n=3)
    return f"there is no option {key!r}" + (f"; did you mean {' or '.join(similar_keys)}?" if similar_keys else "")


def _print_documents(documents: Sequence[DocumentedKey], targets: Mapping[str, str]) -> None:
    from llmrl.config.option_docs import format_option_type

    rows = [_format_explain_cells(document, format_option_type(document.key, targets)) for document in documents]
    if not sys.stdout.isatty():
        _print("\n".join("\t".join(row) for row in rows))
        return
    from llmrl.display.console import print_table

    print_table("Options", EXPLAIN_COLUMNS, rows, "lllll")


def _format_explain_cells(document: DocumentedKey, type_text: str) -> tuple[str, ...]:
    """Return the cells of an option under `EXPLAIN_COLUMNS`."""
    from llmrl.config.option_docs import format_value

    value = format_value(document.value) if document.is_leaf else ""
    if document.key.endswith("_target_"):
        meaning = "class or function that is called with the other options"
        return document.key, value, "", meaning, document.value_location
    meaning = "; ".join([document.meaning, *(f"in this config: {note}" for note, _ in document.notes)])
    locations = dict.fromkeys(x for x in (document.meaning_location, document.value_location) if x != "typed")
    return document.key, value, type_text if document.is_leaf else "", meaning, ", ".join(locations)
