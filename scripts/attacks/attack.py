"""Attacks on a platform that is left alone with money and strangers' files: one table of what was tried and seen.

Each script of this folder registers its attacks and calls `main`:

    @attack("half a surrogate pair in a JSON escape", "invalid reply, the run goes on")
    def _(folder: Path) -> tuple[bool, str]:
        ...
        return held, "what was seen, in a few words"

An attack gets an empty folder of its own. It never reaches for another machine, and ends by itself.
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


class Attack(NamedTuple):
    """An attack: its description, the expected outcome, and the function that performs it."""

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


def path_with(folder: Path) -> str:
    """Return PYTHONPATH for a command, with `folder` before the entries of this process."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def main(title: str) -> None:
    """Try all attacks, or those whose name holds the words given, and print a Markdown table.

    The exit status is 1 if one of them succeeded.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("words", nargs="*", help="only attacks whose name holds one of these")
    words = parser.parse_args().words
    chosen = [each for each in ATTACKS if not words or any(word in each.name for word in words)]
    print(f"## {title}\n\n| # | attack | expected | seen | held |\n| --- | --- | --- | --- | --- |", flush=True)
    started, lost = time.monotonic(), 0
    for number, each in enumerate(chosen, start=1):
        with (
            tempfile.TemporaryDirectory(prefix="llmrl_attack_") as folder,
            tempfile.TemporaryDirectory(prefix="llmrl_config_") as user,
        ):
            os.environ["XDG_CONFIG_HOME"] = user  # commands record there what the user has approved
            try:
                held, seen = each.trial(Path(folder))
            except Exception as error:  # an attack that breaks the script has not been withstood
                held, seen = False, f"{type(error).__name__}: {error}"
        lost += not held
        cells = (str(number), each.name, each.expected, seen, "yes" if held else "**no**")
        print("| " + " | ".join(_cell(text) for text in cells) + " |", flush=True)
    print(f"\n{len(chosen) - lost} of {len(chosen)} held, {time.monotonic() - started:.0f} s")
    sys.exit(1 if lost else 0)


def _cell(text: str) -> str:
    shown = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return shown.replace("|", "\\|")[:160]
