"""Evaluate the agents of runs in every test of a suite (docs/generalisation.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.evaluation.settings import EvaluationSettings, Teller

PLAYERS = ("student", "random", "bot")


def evaluate_suite(
    runs: Sequence[Path], suite: str, settings: EvaluationSettings, tell: Teller, changes: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Play a suite with one run or several, and write what was found.

    Args:
        runs: folders of the runs.
        suite: its name, or a `.yaml` file.
        settings: what is asked; several mechanisms, a context, both modes and films are for other evaluations.
        tell: is told what goes on.
        changes: `key=value` for keys of the suite.

    Returns:
        What was written: of each run, and of all together where there are several, with `out`, its folder.

    Raises:
        LlmrlError: a folder is no run, the suite makes no sense, is for other runs, or none of its tests can be played.
    """
    from llmrl.analysis.suite import write_suite
    from llmrl.analysis.suite_groups import STUDENT, experiments, together
    from llmrl.evaluation.saved_runs import open_saved
    from llmrl.evaluation.suite_run import check_played, play_suite
    from llmrl.run.files import inside

    name, content = _content(suite, changes, settings.episodes)
    refused = [word for word, given in (("video", settings.video), ("context", settings.context is not None)) if given]
    if refused or settings.mode == "both":
        raise ConfigError(f"{refused[0] if refused else 'mode=both'} cannot be used with a suite")
    players = list(dict.fromkeys(settings.policies))
    if unknown := [each for each in players if each not in PLAYERS]:
        raise ConfigError(f"policy={unknown[0]}: a suite is played by {', '.join(PLAYERS)}, several with commas")
    if len(runs) > 1 and STUDENT not in players:
        raise ConfigError(f"policy={','.join(players)}: several runs are given for their agents, which are the student")
    saved = [open_saved(run, settings.trusted) for run in runs]
    groups = experiments(runs, [each.config for each in saved])
    found: list[dict[str, Any]] = []
    for i, (run, each) in enumerate(zip(runs, saved, strict=True)):
        own = settings
        if len(runs) > 1:
            tell(f"Run {i + 1} of {len(runs)}: {run}")
            own = replace(settings, out=settings.out / str(i) if settings.out else None)
        place = inside(run, "evaluation", f"suite_{name}") if own.out is None else own.out / f"suite_{name}"
        # Who has no runs plays once.
        found.append(play_suite(each, [STUDENT] if found else players, own, name, content, place, tell))
    if len(found) > 1:
        joined = together(found, groups)
        above = Path(os.path.commonpath([run.absolute().parent for run in runs]))
        folder = (settings.out or above) / f"suite_{name}"
        write_suite(joined, folder)
        found.append({**joined, "out": str(folder)})
    check_played(found[-1])
    return found


def _content(suite: str, changes: Sequence[str], episodes: int | None) -> tuple[str, dict[str, Any]]:
    """The suite's name, and what it says with what was asked put over it."""
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from llmrl.core.option_files import options

    own = Path(suite).expanduser()
    shipped = options("suite")
    if suite in shipped:
        name, content = suite, shipped[suite]
    elif suite.endswith((".yaml", ".yml")):
        try:
            name, content = own.stem, yaml.safe_load(own.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"suite={suite} cannot be read: {error}") from error
    else:
        raise ConfigError(f"suite={suite}: there is {', '.join(shipped)}, or a file ending in .yaml")
    if not isinstance(content, dict):
        raise ConfigError(f"suite={suite} must be keys and values, such as tests: and episodes:")
    typed = [*changes, *([] if episodes is None else [f"episodes={episodes}"])]
    try:
        merged = OmegaConf.merge(OmegaConf.create(content), OmegaConf.from_dotlist(typed))
        plain = OmegaConf.to_container(merged, resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"suite: {error}") from error
    assert isinstance(plain, dict)
    return name, {str(key): value for key, value in plain.items()}
