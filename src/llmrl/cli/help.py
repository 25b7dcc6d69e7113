"""`--help`, `--list`, `--explain` and `--version` of commands that compose an experiment.

Descriptions of options are generated from the option files.
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
    "regime": "pre-training of agents, schedule and objective; the default depends on env=",
    "principal": "proposer of taxes, incentives or policy parameters",
    "teacher": "adviser of a student while it learns",
    "llm": "language model of principals, teachers and players",
    "hardware": "machine or cluster that computes the runs",
    "loggers": "metric loggers: loggers=[jsonl,tensorboard,wandb]",
    "method": "method of fine-tuning a proposer",
    "dataset": "data of fine-tuning",
    "debug": "small numbers of steps and episodes, for a quick test: +debug=quick",
}
"""Config groups with their descriptions."""

LISTED_GROUPS = (*GROUP_DESCRIPTIONS, "experiment", "treatment")
"""Groups that `--list` accepts, in addition to their subgroups, e.g. `hardware/backend`."""

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
    ("--explain GROUP=OPTION", "value, type with range, meaning and file of each key of a chosen option"),
    ("--cfg job", "the composed config"),
    ("--multirun", "run every combination of comma-separated values; repeat the command to compute what is missing"),
    ("--version", "the version of llmrl"),
    ("--hydra-help", "Hydra's own flags"),
)
EXPLAIN_COLUMNS = ("key", "value", "type", "meaning", "file")
"""Columns of `--explain`."""
GROUPS_BY_COMMAND: dict[str, tuple[str, ...]] = {
    "train": ("env", "agent", "regime", "principal", "teacher", "llm", "hardware", "loggers", "debug"),
    "finetune": ("env", "agent", "method", "dataset", "llm", "hardware", "loggers", "debug"),
}
"""Config groups of a command in the order of its `--help`, by its primary config."""


def print_help_if_requested(command: str, primary: str, arguments: Sequence[str]) -> bool:
    """Print help, a list of options or the version if `arguments` request one of them; return whether they do.

    Args:
        command: name of the command, e.g. `llmrl-train`.
        primary: primary config of the command, `train` or `finetune`.
        arguments: arguments of the command line.

    Raises:
        ConfigError: `--list` names no group, several groups, or one that does not exist.
    """
    if "--version" in arguments:
        from llmrl import __version__

        _print(f"llmrl {__version__}")
        return True
    if not {"--help", "-h", "--list"} & set(arguments):
        return False
    (groups, folders), width = _parse_arguments(arguments), _get_output_width()
    if "--list" not in arguments:
        _print(format_help_page(command, primary, width, folders))
        return True
    if len(groups) != 1:
        raise ConfigError(f"--list takes one group: {', '.join(LISTED_GROUPS)}")
    _print(format_option_list(groups[0], width, folders))
    return True


def _parse_arguments(arguments: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Return the arguments that are neither flags nor folders, and the folders with options of the user."""
    folders: list[str] = []
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in ("--config-dir", "-cd"):
            folders += [value] if equals else arguments[i + 1 : i + 2]
    words = [argument for argument in arguments if not argument.startswith("-") and argument not in folders]
    return words, [Path(folder) for folder in folders]


def format_help_page(command: str, primary: str, width: int, folders: Sequence[Path] = ()) -> str:
    """Return the help of a command with the options in `folders`, in lines of at most `width` characters."""
    lines = [f"{command} composes an experiment from one option of each group and runs it.", "", "Examples"]
    for arguments, description in EXAMPLES_BY_COMMAND[primary]:
        lines += [f"  {command} {arguments}", *_wrap(description, "      ", width)]
    lines += ["", f"Groups, as group=option ({command} --list env says what each option is); debug as +debug=option"]
    for group in GROUPS_BY_COMMAND[primary]:
        names = ", ".join(list_all_option_names(group, folders))
        lines += [f"  {group:<10} {GROUP_DESCRIPTIONS[group]}", *_wrap(names, "             ", width)]
    lines += ["", "Studies, as experiment=family/name: settings of a comparison, published or planned here"]
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


def format_option_list(group: str, width: int, folders: Sequence[Path] = ()) -> str:
    """Return the options of a group as text: each name with the first sentence of the header of its file.

    Args:
        group: config group.
        width: maximum number of characters of a line.
        folders: folders with options of the user.

    Raises:
        ConfigError: there is no such group.
    """
    from llmrl.config.option_docs import read_description
    from llmrl.core.option_files import find_file, get_root, list_nested_options, list_subgroups

    family = group.removeprefix("experiment/")
    if group == "experiment":
        user_paths = [path for folder in folders for path in sorted((folder / group).glob("*/*.yaml"))]
        user_names = [f"{path.parent.name}/{path.stem}" for path in user_paths]
        option_names = [*list_nested_options(group), *list_user_options(group, folders), *user_names]
    elif group in LISTED_GROUPS or any(group in list_subgroups(name) for name in GROUP_DESCRIPTIONS):
        option_names = list_all_option_names(group, folders)
    elif group.startswith("experiment/") and family in list_studies_by_family():
        group, option_names = "experiment", [f"{family}/{name}" for name in list_studies_by_family()[family]]
    else:
        raise ConfigError(f"there is no group {group!r}; available groups: {', '.join(LISTED_GROUPS)}")
    name_width = max(map(len, option_names))
    lines = []
    for name in option_names:
        paths = (folder / group / f"{name}.yaml" for folder in (get_root(), *folders))
        path = next((path for path in paths if find_file(path) is not None), None)
        header_text = "From an installed package." if path is None else read_description(path) or f"From {path}."
        first_sentence, separator, _ = header_text.partition(". ")
        lines += _wrap(first_sentence + separator.strip(), f"{name:<{name_width}}  ", width)
    return "\n".join(lines)


def list_all_option_names(group: str, folders: Sequence[Path] = ()) -> list[str]:
    """Return the names of the options of a group, including those of installed packages and in the user's `folders`."""
    from llmrl.config.installed_options import list_installed_options
    from llmrl.core.option_files import list_option_names

    return sorted({*list_option_names(group), *list_installed_options(group), *list_user_options(group, folders)})


def list_user_options(group: str, folders: Sequence[Path]) -> list[str]:
    """Return the names of the options of a group in the user's `folders`, sorted."""
    from llmrl.core.option_files import is_choosable

    return sorted(
        {path.stem for folder in folders for path in (folder / group).glob("*.yaml") if is_choosable(path.stem)}
    )


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
    """Print the documentation of keys of the config that `arguments` compose.

    The keys are those that `arguments` name (`design.candidates`), or else those of the chosen options (`env=cleanup`).
    All keys are printed if there are neither; options of groups without a node, such as `experiment=`, may set any key.

    Args:
        primary: primary config of the command, `train` or `finetune`.
        arguments: arguments of the command line, without `--explain`.

    Raises:
        ConfigError: an option or key does not exist, or an argument has several values, as for a sweep.
    """
    from hydra.errors import HydraException

    from llmrl.config.option_docs import read_documented_config
    from llmrl.core.option_files import list_part_groups

    words, folders = _parse_arguments(arguments)
    overrides = [word for word in words if "=" in word]
    keys = [word for word in words if "=" not in word]
    try:
        documented_keys = read_documented_config(primary, overrides, folders)
    except HydraException as error:
        raise ConfigError(" ".join(str(error).split())) from error
    if not keys:
        groups = [word.partition("=")[0].lstrip("+").partition("@")[0] for word in overrides]
        groups_without_node = set(LISTED_GROUPS) - set(list_part_groups())
        keys = [group.replace("/", ".") for group in groups if group not in groups_without_node]
    selected_keys = [
        entry for entry in documented_keys.values() if not keys or any(_is_under_key(entry.key, key) for key in keys)
    ]
    if missing := [key for key in keys if not any(_is_under_key(entry.key, key) for entry in selected_keys)]:
        raise ConfigError(format_unknown_key_message(missing[0], documented_keys))
    targets = {
        key.removesuffix("._target_"): entry.value
        for key, entry in documented_keys.items()
        if key.endswith("._target_") and isinstance(entry.value, str)
    }
    _print_documented_keys([entry for entry in selected_keys if entry.is_leaf or entry.meaning], targets)


def _is_under_key(key: str, prefix: str) -> bool:
    return key == prefix or key.startswith(f"{prefix}.")


def format_unknown_key_message(key: str, keys: Iterable[str]) -> str:
    """Return an error message for a key that does not exist."""
    import difflib

    names = list(keys)
    same_last_part = [name for name in names if name.rpartition(".")[2] == key.rpartition(".")[2]]
    similar_keys = same_last_part or difflib.get_close_matches(key, names, n=3)
    return f"there is no option {key!r}" + (f"; did you mean {' or '.join(similar_keys)}?" if similar_keys else "")


def _print_documented_keys(entries: Sequence[DocumentedKey], targets: Mapping[str, str]) -> None:
    from llmrl.config.option_docs import format_option_type

    rows = [_format_explain_cells(entry, format_option_type(entry.key, targets)) for entry in entries]
    if not sys.stdout.isatty():
        _print("\n".join("\t".join(row) for row in rows))
        return
    from llmrl.display.console import print_table

    print_table("Options", EXPLAIN_COLUMNS, rows, "lllll")


def _format_explain_cells(entry: DocumentedKey, type_text: str) -> tuple[str, ...]:
    """Return the cells of a key under `EXPLAIN_COLUMNS`."""
    from llmrl.config.option_docs import OVERRIDE_LOCATION, format_value

    value = format_value(entry.value) if entry.is_leaf else ""
    if entry.key.endswith("_target_"):
        meaning = "class or function that is called with the other options"
        return entry.key, value, "", meaning, entry.value_location
    meaning = "; ".join([entry.meaning, *(f"in this config: {note}" for note, _ in entry.notes)])
    locations = dict.fromkeys(x for x in (entry.meaning_location, entry.value_location) if x != OVERRIDE_LOCATION)
    return entry.key, value, type_text if entry.is_leaf else "", meaning, ", ".join(locations)
