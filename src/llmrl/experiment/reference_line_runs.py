"""The runs that measure the reference lines of a design run: their names, configs and results.

Their configs are the design run's config without its principal, language model and seed, so runs that differ only in
these share the same reference runs. By default reference runs take at most as many environment steps as the design run,
so coarse scans of longer runs may contain more vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder, Config
from llmrl.config.loop_sections import get_loop_kind
from llmrl.core.errors import RunFolderError
from llmrl.core.option_files import load_option
from llmrl.core.plain_data import read_json_object
from llmrl.experiment.config_completion import groups_using_model
from llmrl.experiment.parts import Parts, count_envs_per_society
from llmrl.experiment.prerequisites import PrerequisiteRun
from llmrl.experiment.run_references import with_digests, without_digests
from llmrl.loops.design import DesignLoop
from llmrl.loops.reference_measurements import ContextReferences, References
from llmrl.results.principal_scores import REFERENCE_TITLES
from llmrl.run.status import SUMMARY_NAME

_NAME_SUFFIX = "_references"
"""Suffix that is appended to the name of a design run for the name of its reference runs."""

_PLAYER_GROUPS = ("agent", "teacher")
"""Config groups whose parts play in reference measurements, too, and would call a language model there."""
_PREFERRED_REPETITIONS = 2
"""Preferred number of measurements of each vector, if they fit into the allowed environment steps."""
_OMISSION_REASON = "they would take more environment steps than the run itself; design.references=1 requests all"
_MIN_SCAN_VECTORS = 3
"""Minimum number of vectors of a coarse scan: no mechanism, the center, and the maximum."""


@dataclass(frozen=True)
class ReferencePlan:
    """Reference measurements of a run.

    Attributes:
        n_repetitions: measurements of each vector in each context; 0: nothing is measured.
        n_vectors: number of measured vectors of the coarse scan; the first one stands for no mechanism.
        measures_untrained: whether untrained agents are measured.
        scan_size: number of vectors of the complete coarse scan.
    """

    n_repetitions: int
    n_vectors: int
    measures_untrained: bool
    scan_size: int


def plan_within_steps(env_steps: int, vector_steps: int, untrained_steps: int, scan_size: int) -> ReferencePlan:
    """Return the reference measurements that together take at most `env_steps`.

    The first priority is the vector for no mechanism, then untrained agents, then the other vectors of the coarse scan
    in their order, unless fewer than `_MIN_SCAN_VECTORS` fit. Two repetitions are preferred to more vectors, because
    the noise of a measurement cannot be estimated from one.

    Args:
        env_steps: environment steps that may be used.
        vector_steps: environment steps of one measurement of a vector, summed over contexts.
        untrained_steps: environment steps of one measurement of untrained agents, summed over contexts.
        scan_size: number of vectors of the coarse scan, >= 1.
    """
    min_vectors = min(_MIN_SCAN_VECTORS, scan_size)
    n_repetitions, n_vectors, measures_untrained = 0, 0, False
    for n, n_required in ((_PREFERRED_REPETITIONS, min_vectors), (1, min_vectors), (_PREFERRED_REPETITIONS, 1), (1, 1)):
        if (n_fitting := (env_steps - n * untrained_steps) // (n * vector_steps)) >= n_required:
            n_repetitions, measures_untrained = n, True
            n_vectors = min(n_fitting, scan_size) if n_required == min_vectors else 1
            break
    else:
        if vector_steps <= env_steps:
            n_repetitions, n_vectors = 1, 1
    return ReferencePlan(n_repetitions, n_vectors, measures_untrained, scan_size)


def find_reason_without_references(config: Config, parts: Parts) -> str | None:
    """Return why the run of `config` has no reference lines; None if it has them, or is not a design run."""
    if parts.loop_kind != "design":
        return None
    if config["design"]["references"] == 0:
        return "none (design.references=0)"
    for group in groups_using_model(config, _PLAYER_GROUPS, parts.resources.builder):
        return f"none: the {group} uses a language model, which these measurements would also call"
    if not parts.agents[0].learns:
        return "none: these agents do not learn, so they do not adapt to a mechanism"
    if "n_envs" not in config["env"]:
        return f"none: env={parts.env.spec.name} has no option n_envs, so the games of a proposal cannot be set"
    return None


def count_expected_stages(config: Config, builder: Builder) -> int:
    """Return the maximum number of reference runs of `config`, which can be computed before parts are built."""
    has_references = get_loop_kind(config, builder) == "design" and config["design"]["references"] != 0
    return 2 if has_references and not groups_using_model(config, _PLAYER_GROUPS, builder) else 0


def plan_references(config: Config, parts: Parts, loop: DesignLoop) -> ReferencePlan:
    """Return the reference measurements of a design run that has reference lines (`find_reason_without_references`)."""
    space, requested = parts.env.spec.proposal_space, config["design"]["references"]
    scan_size = len(space.probe_vectors)
    if requested is not None:
        return ReferencePlan(requested, n_vectors=scan_size, measures_untrained=True, scan_size=scan_size)
    vector_steps, untrained_steps = (_count_measurement_steps(config, parts, flag) for flag in (True, False))
    return plan_within_steps(loop.env_steps, vector_steps, untrained_steps, scan_size)


def list_measurement_runs(config: Config, parts: Parts, loop: object) -> list[PrerequisiteRun]:
    """Return the runs that measure the reference lines of the run of `config`.

    They are a coarse scan, whose first vector stands for no mechanism, and a run with untrained agents. There are none
    if `find_reason_without_references` returns a reason, no measurement fits into the allowed environment steps, or the
    loop is not a `DesignLoop`.

    Raises:
        ConfigError: a file that the config names is missing.
    """
    if not isinstance(loop, DesignLoop) or find_reason_without_references(config, parts) is not None:
        return []
    plan = plan_references(config, parts, loop)
    if not plan.n_repetitions:
        return []
    spec = parts.env.spec
    vectors = spec.proposal_space.probe_vectors.tolist()[: plan.n_vectors]
    scan_config = _build_measurement_config(config, vectors, plan.n_repetitions, parts)
    if plan.n_vectors == 1 < plan.scan_size:
        runs = [_make_run("no mechanism", "no_mechanism", "no mechanism", scan_config, spec.horizon)]
    else:
        subset_text = "" if plan.n_vectors == plan.scan_size else f", the first {plan.n_vectors:,}"
        name = f"coarse scan of {plan.scan_size:,} vectors{subset_text}"
        runs = [_make_run("coarse scan", "scan", name, scan_config, spec.horizon)]
    if plan.measures_untrained:
        untrained_config = _build_measurement_config(config, vectors[:1], plan.n_repetitions, parts)
        untrained_config["design"]["adapt_rounds"] = 0
        if "init_from" in untrained_config["agent"]:
            untrained_config["agent"] = {**untrained_config["agent"], "init_from": None}
        runs.append(_make_run("untrained agents", "untrained", "untrained agents", untrained_config, spec.horizon))
    return runs


def read_measured_references(measurement_runs: Sequence[PrerequisiteRun]) -> References | None:
    """Return the reference lines that `measurement_runs` have measured; None without runs or if one is unfinished.

    Raises:
        RunFolderError: the summary of one of the runs is missing or damaged.
    """
    if not measurement_runs or not all(run.finished for run in measurement_runs):
        return None
    scan, *untrained = (_read_history(run.folder / SUMMARY_NAME) for run in measurement_runs)
    return References.from_histories(scan, untrained[0] if untrained else [])


def _read_history(path: Path) -> list[dict[str, Any]]:
    """Return the proposals in the `summary.json` of a finished run, with their measurements."""
    try:
        return [dict(proposal) for proposal in read_json_object(path)["history"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        remedy = "remove that run's folder, so that it is computed again"
        raise RunFolderError(f"{path} (reference lines) cannot be read ({error!r}); {remedy}") from error


def build_plan_rows(
    config: Config, parts: Parts, loop: object, measurement_runs: Sequence[PrerequisiteRun]
) -> list[tuple[str, str]]:
    """Return the part of a plan about reference lines: measurements and runs."""
    if not isinstance(loop, DesignLoop):
        return []
    reason = find_reason_without_references(config, parts)
    if reason is not None:
        return [("reference lines", reason)]
    plan = plan_references(config, parts, loop)
    if not plan.n_repetitions:
        return [("reference lines", f"none: {_OMISSION_REASON}")]
    rows = [("reference lines", _describe_measurements(plan)), *(("", run.plan_text) for run in measurement_runs)]
    if plan.n_vectors < plan.scan_size or not plan.measures_untrained:
        rows.append(("", f"others are omitted: {_OMISSION_REASON}"))
    if (references := read_measured_references(measurement_runs)) is not None:
        rows += [("", _format_context_references(context)) for context in references.contexts]
    return rows


def _describe_measurements(plan: ReferencePlan) -> str:
    """Describe which levels are measured, and how often."""
    subjects = ["no mechanism"] + ["untrained agents"] * plan.measures_untrained
    if plan.n_vectors > 1:
        is_complete = plan.n_vectors == plan.scan_size
        prefix = "" if is_complete else f"the first {plan.n_vectors:,} of {plan.scan_size:,} vectors of "
        subjects.append(f"{prefix}a coarse scan")
    times = "once" if plan.n_repetitions == 1 else f"{plan.n_repetitions:,} times"
    return f"{', '.join(subjects)}; each vector measured {times}"


def _format_context_references(references: ContextReferences) -> str:
    """Format the reference lines of a context as a short text."""
    prefix = "" if references.context is None else f"{references.context}: "
    levels = (references.untrained, references.no_mechanism, references.best)
    lines = zip(REFERENCE_TITLES.values(), levels, strict=True)
    return prefix + ", ".join(f"{name} {line.value:.3g}" for name, line in lines if line is not None)


def _count_measurement_steps(config: Config, parts: Parts, with_adaptation: bool) -> int:
    """Return the environment steps of one measurement of a vector in every context, with or without adaptation."""
    design, n_games = config["design"], count_envs_per_society(config)
    rounds = design["adapt_rounds"] * with_adaptation - (-design["validate_episodes"] // n_games)
    return int(rounds * (parts.env.spec.horizon or 0) * n_games * parts.env.spec.proposal_space.n_context_rows)


def _build_measurement_config(
    config: Config, vectors: list[list[float]], repetitions: int, parts: Parts
) -> dict[str, Any]:
    """Return the config of a run that measures `vectors` in each context `repetitions` times.

    Only vectors of the same principal step are measured with the same random numbers. Each step therefore contains as
    many vectors as possible, and is repeated for each context.
    """
    design = config["design"]
    n_candidates = max(n for n in range(1, design["candidates"] + 1) if len(vectors) % n == 0)
    step_starts = range(0, len(vectors), n_candidates)
    n_contexts = parts.env.spec.proposal_space.n_context_rows
    proposals = [vector for i in step_starts for _ in range(n_contexts) for vector in vectors[i : i + n_candidates]]
    run_config = without_digests(config)
    run_config.pop("llm", None)  # no part of this run uses a model or writes prompts
    run_config.pop("prompts", None)
    run_config |= {
        "name": config["name"] + _NAME_SUFFIX,
        "seed": 0,
        "resume": True,
        "rerun": False,
        "principal": {**load_option("principal", "listed"), "vectors": proposals},
        "env": {**config["env"], "n_envs": n_candidates * count_envs_per_society(config)},
    }
    run_config["design"] = {
        **design,
        "steps": repetitions * len(proposals) // n_candidates,
        "candidates": n_candidates,
        "replicates": 1,
        "reset_agents": True,
        "contexts": "in_turn",
        "references": 0,
        "confirm_steps": 0,
        "evaluations": 0,
        "anytime": False,
        "validation_rounds": None,
    }
    return run_config


def _make_run(stage: str, label: str, name: str, config: dict[str, Any], horizon: int | None) -> PrerequisiteRun:
    """Create a prerequisite run for the stage `stage` of a run, with the folder label `reference=<label>`."""
    design, n_envs = config["design"], config["env"]["n_envs"]
    rounds = design["adapt_rounds"] - (-design["validate_episodes"] // (n_envs // design["candidates"]))
    steps = design["steps"] * rounds * (horizon or 0) * n_envs
    return PrerequisiteRun(f"reference lines: {stage}", name, with_digests(config), [f"reference={label}"], steps)
