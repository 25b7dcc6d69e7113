"""The runs behind the reference lines of a design run: what they are called, computed from, and found.

They follow from the run's config without what differs within a sweep (principal, language model, seed, steps), so a
sweep over these shares them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.analysis.reference_lines import LINES
from llmrl.core.errors import RunFolderError
from llmrl.core.option_files import option
from llmrl.core.plain_data import read_object
from llmrl.experiment.models import asking
from llmrl.experiment.parts import Parts, games_of_a_society, loop_kind
from llmrl.experiment.prerequisites import PrerequisiteRun
from llmrl.experiment.run_references import with_digests, without_digests
from llmrl.loops.reference_measurements import References, Situation
from llmrl.run.artifacts import SUMMARY_NAME

log = logging.getLogger(__name__)

_SUFFIX = "_references"
"""Of the folder that the runs are in, beside that of the runs that need them."""

Config = Mapping[str, Any]


def left_out(config: Config, parts: Parts) -> str | None:
    """Return why the run of `config` has no reference lines; None if it has them, or is no design run."""
    if loop_kind(config) != "design":
        return None
    if not config["design"]["references"]:
        return "none (design.references=0)"
    for group in asking(config, ("agent", "teacher")):
        return f"none: the {group} asks a language model, which would be asked for them, too"
    if not parts.agents[0].learns:
        return "none: these agents do not learn, so they adapt to no mechanism"
    if "n_envs" not in config["env"]:
        return f"none: env={parts.env.spec.name} has no option n_envs, so the games of a proposal cannot be set"
    return None


def needed(config: Config, parts: Parts) -> list[PrerequisiteRun]:
    """Return the two runs behind the reference lines of the run of `config`, with the parts of that run; none where
    `left_out` says why, and for other loops.

    Raises:
        ConfigError: a file that the config names is not there.
    """
    if loop_kind(config) != "design" or left_out(config, parts) is not None:
        return []
    spec, games = parts.env.spec, games_of_a_society(config)
    space = spec.proposals
    vectors = space.coarse_scan.tolist()
    scan = _derived(config, vectors, games, max(len(spec.contexts), 1))
    untrained = _derived(config, [space.neutral.tolist()], games, max(len(spec.contexts), 1))
    untrained["design"]["adapt_rounds"] = 0
    if "init_from" in untrained["agent"]:
        untrained["agent"] = {**untrained["agent"], "init_from": None}
    return [
        _run("scan", f"coarse scan of {len(vectors):,} vectors", scan, spec.horizon),
        _run("untrained", "untrained agents", untrained, spec.horizon),
    ]


def log_left_out(config: Config, parts: Parts) -> None:
    """Log why there are no reference lines, where they are asked for and there are none."""
    why = left_out(config, parts)
    if why is not None and config["design"]["references"]:
        log.info("reference lines: %s", why)


def known(behind: Sequence[PrerequisiteRun]) -> References | None:
    """Return the reference lines that the runs `behind` them give; None while these are not finished, or are none.

    Raises:
        RunFolderError: the summary of one of them is gone or damaged.
    """
    if not behind or not all(run.finished for run in behind):
        return None
    scan, untrained = (_history(run.folder / SUMMARY_NAME) for run in behind)
    return References.of(scan, untrained)


def _history(path: Path) -> list[dict[str, Any]]:
    """The proposals of a finished run."""
    try:
        return [dict(entry) for entry in read_object(path)["history"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        again = "remove that run's folder, and it is computed again"
        raise RunFolderError(f"{path}, of the reference lines, cannot be read ({error!r}); {again}") from error


def told(config: Config, parts: Parts, behind: Sequence[PrerequisiteRun]) -> list[tuple[str, str]]:
    """Return what a plan says of reference lines and the runs `behind` them."""
    if loop_kind(config) != "design":
        return []
    why = left_out(config, parts)
    if why is not None:
        return [("reference lines", why)]
    times = config["design"]["references"]
    each = "once" if times == 1 else f"{times:,} times"
    words = f"no mechanism, untrained agents, and a coarse scan; each vector measured {each}"
    rows = [("reference lines", words), *(("", run.told) for run in behind)]
    found = known(behind)
    return rows if found is None else [*rows, *(("", _shown(each)) for each in found.situations)]


def _shown(own: Situation) -> str:
    """A context's lines in short."""
    where = "" if own.context is None else f"{own.context}: "
    values = (own.untrained.value, own.no_mechanism.value, own.best.value)
    return where + ", ".join(f"{name} {value:.3g}" for name, value in zip(LINES.values(), values, strict=True))


def _derived(config: Config, vectors: list[list[float]], games: int, contexts: int) -> dict[str, Any]:
    """The config of a run that measures `vectors` in each of its contexts, one after the other, as often as asked for.

    Vectors of one step share their random numbers, those of different steps do not. So the vectors that fit into one
    step are listed together, once for each context.
    """
    design = config["design"]
    candidates = max(n for n in range(1, design["candidates"] + 1) if len(vectors) % n == 0)
    starts = range(0, len(vectors), candidates)
    laid_out = [vector for i in starts for _ in range(contexts) for vector in vectors[i : i + candidates]]
    own = without_digests(config)
    own.pop("llm", None)  # nobody asks a model, and nobody writes prompts
    own.pop("prompts", None)
    own |= {
        "name": config["name"] + _SUFFIX,
        "seed": 0,
        "resume": True,
        "rerun": False,
        "principal": {**option("principal", "listed"), "vectors": laid_out},
        "env": {**config["env"], "n_envs": candidates * games},
    }
    own["design"] = {
        **design,
        "steps": design["references"] * len(laid_out) // candidates,
        "candidates": candidates,
        "replicates": 1,
        "society_seeds": "own",
        "reset_agents": True,
        "contexts": "in_turn",
        "references": 0,
        "confirm_steps": 0,
        "evaluations": 0,
        "anytime": False,
        "validate_at": None,
    }
    return own


def _run(label: str, name: str, config: dict[str, Any], horizon: int | None) -> PrerequisiteRun:
    design, n_envs = config["design"], config["env"]["n_envs"]
    rounds = design["adapt_rounds"] - (-design["validate_episodes"] // (n_envs // design["candidates"]))
    steps = design["steps"] * rounds * (horizon or 0) * n_envs
    return PrerequisiteRun("reference lines", name, with_digests(config), [f"reference={label}"], steps)
