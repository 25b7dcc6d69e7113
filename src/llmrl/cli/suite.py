"""`llmrl-evaluate <runs> suite=<name>`: the agents of runs in every test of a suite, as a table and a figure."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PLAYERS = ("student", "random", "bot")
_WORDS = ("suite=", "suite.")


def split_words(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(words that are about the suite, all others) of a command line; the former as `key=value` without `suite.`."""
    own = [word for word in argv if word.startswith(_WORDS)]
    return [word.removeprefix("suite.") for word in own], [word for word in argv if word not in own]


def evaluate_suite(args: argparse.Namespace, words: Sequence[str]) -> list[dict[str, Any]]:
    """Play a suite with one run or several, and write what was found.

    Args:
        args: of `llmrl-evaluate`.
        words: `suite=<name>` or not, and `key=value` for keys of the suite.

    Returns:
        What was written: of each run, and of all together where there are several, with `out`, its folder.

    Raises:
        LlmrlError: a folder is no run, the suite makes no sense, is for other runs, or none of its tests can be played.
    """
    from llmrl.analysis.suite import write_suite
    from llmrl.analysis.suite_groups import STUDENT, experiments, together
    from llmrl.core.errors import ConfigError
    from llmrl.display.console import terminal
    from llmrl.evaluation.suite_run import check_played, evaluate_run, run_config
    from llmrl.run.files import inside

    name, content = _content(args, words)
    refused = [f"--{o}" for o in ("video", "context") if getattr(args, o) not in (None, False)]
    if refused or args.mode == "both":
        raise ConfigError(f"{refused[0] if refused else '--mode=both'} cannot be used with a suite")
    players = list(dict.fromkeys(args.policy.split(",")))
    if unknown := [each for each in players if each not in PLAYERS]:
        raise ConfigError(f"--policy={unknown[0]}: a suite is played by {', '.join(PLAYERS)}, several with commas")
    runs = [args.run, *args.others]
    if len(runs) > 1 and STUDENT not in players:
        raise ConfigError(f"--policy={args.policy}: several runs are given for their agents, which are the student")
    configs = [run_config(run, args.trust) for run in runs]
    groups = experiments(runs, configs)
    found: list[dict[str, Any]] = []
    for run, config in zip(runs, configs, strict=True):
        if len(runs) > 1:
            terminal().print(f"Run {len(found) + 1} of {len(runs)}: {run}", soft_wrap=True)
        out = (args.out / str(len(found)) if len(runs) > 1 else args.out) if args.out else None
        place = inside(run, "evaluation", f"suite_{name}") if out is None else out / f"suite_{name}"
        # Who has no runs plays once.
        own = [STUDENT] if found else players
        found.append(evaluate_run(run, config, own, args, name, content, place))
    if len(found) > 1:
        joined = together(found, groups)
        above = Path(os.path.commonpath([run.absolute().parent for run in runs]))
        folder = (args.out or above) / f"suite_{name}"
        write_suite(joined, folder)
        found.append({**joined, "out": str(folder)})
    check_played(found[-1])
    return found


def _content(args: argparse.Namespace, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The suite's name, and what it says with what was typed put over it."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from llmrl.core.errors import ConfigError
    from llmrl.core.option_files import options

    chosen = [word.removeprefix("suite=") for word in words if word.startswith("suite=")]
    which = args.suite or (chosen[-1] if chosen else None)
    if which is None:
        raise ConfigError("which suite? give suite=<name> beside suite.<key>=<value>")
    own = Path(which).expanduser()
    shipped = options("suite")
    if which in shipped:
        name, content = which, shipped[which]
    elif which.endswith((".yaml", ".yml")):
        try:
            name, content = own.stem, yaml.safe_load(own.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"suite={which} cannot be read: {error}") from error
    else:
        raise ConfigError(f"suite={which}: there is {', '.join(shipped)}, or a file ending in .yaml")
    if not isinstance(content, dict):
        raise ConfigError(f"suite={which} must be keys and values, such as tests: and episodes:")
    typed = [word for word in words if not word.startswith("suite=")]
    if args.episodes is not None:
        typed.append(f"episodes={args.episodes}")
    try:
        merged = OmegaConf.merge(OmegaConf.create(content), OmegaConf.from_dotlist(typed))
        plain = OmegaConf.to_container(merged, resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"suite: {error}") from error
    assert isinstance(plain, dict)
    return name, {str(key): value for key, value in plain.items()}


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
