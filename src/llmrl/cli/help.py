"""`--help`, `--list` and `--version` of commands that compose an experiment: what there is, out of the option files."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from llmrl.core.errors import ConfigError

GROUPS = {
    "env": "what is played",
    "agent": "who plays, and how it learns",
    "principal": "who sets taxes or incentives, or proposes policies",
    "teacher": "who advises a student while it learns",
    "llm": "the language model that principals, teachers and players ask",
    "hardware": "where the runs are computed",
    "loggers": "where metrics go: loggers=[jsonl,tensorboard,wandb]",
    "method": "how a proposer is fine-tuned",
    "dataset": "what it is fine-tuned on",
    "debug": "in small, or looked into closely: +debug=quick, or several, +debug=[quick,profile]",
}
"""Groups of options, in the order in which they are listed, and what each chooses."""

EXAMPLES = {
    "train": (
        ("env=cleanup principal=llm", "a principal governs a society; llm=scripted, the default, needs no key"),
        ("env=cleanup principal=llm llm=gpt4o dry_run=true", "the plan, with calls and price; runs nothing"),
        ("--multirun principal=ucb,thompson,llm seed=0,1,2 hardware=local", "a sweep: nine runs, side by side"),
        ("--multirun experiment=first/teacher hardware=local", "a family in five minutes, with figure and table"),
        ("env=taxi agent=llm_player play.videos=1", "a language model plays, and a video shows what it thought"),
    ),
    "finetune": (
        ("env=cartpole agent=linear llm.model=Qwen/Qwen2.5-1.5B-Instruct", "train a proposer of policies"),
        ("method=sft dataset=random", "imitate good proposals instead of reinforcing one's own"),
        ("env=cartpole agent=linear llm.model=<path> dry_run=true", "the plan; trains nothing"),
    ),
}
"""Config of a command -> arguments, and what they do."""

FLAGS = (
    ("--list GROUP", "what each option of a group is; experiment and treatment are groups, too"),
    ("--explain GROUP=OPTION", "what the options of a choice mean: name, default, range, file"),
    ("--cfg job", "the composed config"),
    ("--multirun", "every combination of values with commas; the same command again computes what is missing"),
    ("--again RUN key=value", "the experiment of a run folder, with changes"),
    ("--version", "the version of llmrl"),
    ("--hydra-help", "what else Hydra takes"),
)
TAKES = {"train": ("env", "agent", "principal", "teacher", "llm", "hardware", "loggers", "debug")}
TAKES["finetune"] = ("env", "agent", "method", "dataset", "llm", "hardware", "loggers", "debug")


def answered(command: str, primary: str, arguments: Sequence[str]) -> bool:
    """Print what `arguments` ask to know, if they ask for help, a list or the version; returns whether they did.

    Args:
        command: its name, `llmrl-train`.
        primary: config that it composes, `train` or `finetune`.
        arguments: of the command line.

    Raises:
        ConfigError: there is no such group to list.
    """
    if "--version" in arguments:
        from llmrl import __version__

        _print(f"llmrl {__version__}")
    elif "--help" in arguments or "-h" in arguments:
        _print(help_page(command, primary, _width()))
    elif "--list" in arguments:
        rest = arguments[list(arguments).index("--list") + 1 :]
        if len(rest) != 1:
            raise ConfigError(f"--list takes one group: {', '.join(groups())}")
        _print(listed(rest[0], _width()))
    else:
        return False
    return True


def groups() -> list[str]:
    """Return the names of the groups that can be listed."""
    return [*GROUPS, "experiment", "treatment"]


def help_page(command: str, primary: str, width: int) -> str:
    """Return the help of a command, in lines of at most `width` columns."""
    examples = [(f"{command} {arguments}", does) for arguments, does in EXAMPLES[primary]]
    lines = [f"{command} composes an experiment from one option of each group and runs it.", "", "Examples"]
    for typed, does in examples:
        lines += [f"  {typed}", *_wrapped(does, "      ", width)]
    lines += ["", f"Groups, as group=option ({command} --list env says what each option is); debug as +debug=option"]
    for group in TAKES[primary]:
        lines += [f"  {group:<10} {GROUPS[group]}", *_wrapped(", ".join(options(group)), "             ", width)]
    lines += ["", "Studies, as experiment=family/name: settings of a published or measured comparison"]
    for family, studies in families().items():
        lines += _wrapped(", ".join(studies), f"  {family + '/':<14} ", width)
    more = (
        "docs/studies.md says which take which treatment=, docs/results/index.md what five minutes of each family show."
    )
    lines += [*_wrapped(more, "  ", width), "", "Flags"]
    lines += [line for flag, does in FLAGS for line in _wrapped(does, f"  {flag:<24} ", width)]
    lines += [
        "",
        "Every option is listed with its meaning and range in docs/options.md; key=value overrides any of them.",
    ]
    return "\n".join(lines)


def listed(group: str, width: int) -> str:
    """Return the options of a group with one line for each: the first sentence at the head of its file.

    Raises:
        ConfigError: there is no such group.
    """
    from llmrl.config.option_docs import header
    from llmrl.core.option_files import root

    family = group.removeprefix("experiment/")
    if group == "experiment":
        found = [f"{family}/{name}" for family, studies in families().items() for name in studies]
    elif group in groups():
        found = options(group)
    elif group.startswith("experiment/") and family in families():
        group, found = "experiment", [f"{family}/{name}" for name in families()[family]]
    else:
        raise ConfigError(f"there is no group {group!r}; there are {', '.join(groups())}")
    longest = max(map(len, found))
    lines = []
    for name in found:
        path = root() / group / f"{name}.yaml"
        told = header(path) if path.is_file() else "Of an installed package."
        first, stop, _ = told.partition(". ")
        lines += _wrapped(first + stop.strip(), f"{name:<{longest}}  ", width)
    return "\n".join(lines)


def options(group: str) -> list[str]:
    """Return the names of the options of a group, those of installed packages too."""
    from llmrl.config.installed_options import installed_options
    from llmrl.core.option_files import names

    return sorted({*names(group), *installed_options(group)})


def families() -> dict[str, list[str]]:
    """Return the families of studies, each with the names of its studies."""
    from llmrl.core.option_files import choosable, names, root

    folders = sorted(path.name for path in (root() / "experiment").iterdir() if path.is_dir() and choosable(path.name))
    found = {family: names(f"experiment/{family}") for family in folders}
    return {family: studies for family, studies in found.items() if studies}


def _wrapped(text: str, begin: str, width: int) -> list[str]:
    """A text behind `begin`, its further lines under its first."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=begin,
        subsequent_indent=" " * len(begin),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _width() -> int:
    """Columns of the terminal; 100 where there is none."""
    return min(shutil.get_terminal_size((100, 24)).columns, 140) if sys.stdout.isatty() else 100


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Whoever read it has seen enough; what is left in the buffer is not to fail at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
