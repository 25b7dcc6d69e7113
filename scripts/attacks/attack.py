"""Framework for robustness and security tests ("attacks") of unattended runs, budgets, secrets and untrusted files.

Each script in this folder registers its attacks and calls `main`, which prints a table of outcomes:

    @attack("lone surrogate in a JSON escape", "invalid reply, the run continues")
    def _(folder: Path) -> tuple[bool, str]:
        ...
        return passed, "short description of the observed behavior"

Each attack gets an empty folder. Attacks use only the local machine, and terminate.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Trial = Callable[[Path], tuple[bool, str]]
"""Function from an empty folder to (whether the expected behavior was observed, description of the observation)."""


class Attack(NamedTuple):
    """Test of the behavior under a fault or an attack.

    Attributes:
        name: description of the attack.
        expected: description of the expected behavior.
        trial: function that performs the attack.
    """

    name: str
    expected: str
    trial: Trial


ATTACKS: list[Attack] = []


def attack(name: str, expected: str) -> Callable[[Trial], Trial]:
    """Register the decorated function as the attack `name`."""

    def register(trial: Trial) -> Trial:
        ATTACKS.append(Attack(name, expected, trial))
        return trial

    return register


def make_python_path(folder: Path) -> str:
    """Return the PYTHONPATH of this process with `folder` prepended."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def main(title: str) -> None:
    """Run all attacks, or those whose name contains a word of the command line, and print a Markdown table.

    The exit code is 1 if an expected behavior was not observed.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("words", nargs="*", help="run only attacks whose name contains one of these words")
    words = parser.parse_args().words
    selected = [test for test in ATTACKS if not words or any(word in test.name for word in words)]
    print(f"## {title}\n\n| # | attack | expected | observed | passed |\n| --- | --- | --- | --- | --- |", flush=True)
    start, n_failed = time.monotonic(), 0
    for number, test in enumerate(selected, start=1):
        with (
            tempfile.TemporaryDirectory(prefix="llmrl_attack_") as folder,
            tempfile.TemporaryDirectory(prefix="llmrl_config_") as user,
        ):
            os.environ["XDG_CONFIG_HOME"] = user  # commands store user approvals here
            try:
                passed, observed = test.trial(Path(folder))
            except Exception as error:  # unexpected errors count as failures
                passed, observed = False, f"{type(error).__name__}: {error}"
        n_failed += not passed
        cells = (str(number), test.name, test.expected, observed, "yes" if passed else "**no**")
        print("| " + " | ".join(_cell(text) for text in cells) + " |", flush=True)
    print(f"\n{len(selected) - n_failed} of {len(selected)} passed, {time.monotonic() - start:.0f} s")
    sys.exit(1 if n_failed else 0)


def _cell(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return printable.replace("|", "\\|")[:160]
