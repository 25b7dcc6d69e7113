"""`llmrl-evaluate <runs> suite=<name>`: what is typed of a suite, and the table that is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = ("suite=", "suite.")


def split_words(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(words that are about the suite, all others) of a command line; the former as `key=value` without `suite.`."""
    own = [word for word in argv if word.startswith(_WORDS)]
    return [word.removeprefix("suite.") for word in own], [word for word in argv if word not in own]


def which_suite(option: str | None, words: Sequence[str]) -> tuple[str, list[str]]:
    """The suite that `--suite` or a word names, and what is changed in it.

    Raises:
        ConfigError: none is named.
    """
    from llmrl.core.errors import ConfigError

    named = [word.removeprefix("suite=") for word in words if word.startswith("suite=")]
    if option is None and not named:
        raise ConfigError("which suite? give suite=<name> beside suite.<key>=<value>")
    return option or named[-1], [word for word in words if not word.startswith("suite=")]


def print_suite(results: Mapping[str, Any]) -> None:
    """The table of a suite, and where the rest is."""
    from llmrl.analysis.suite import suite_table
    from llmrl.display.console import print_line, print_table, terminal

    table = suite_table(results)
    print_table(table.caption, table.columns, table.rows, table.sides)
    for note in table.notes:
        print_line(note)
    files = "results.json, table.csv, table.md, suite.png"
    terminal().print(f"Saved in {results['out']}: {files}", soft_wrap=True)
