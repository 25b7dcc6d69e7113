"""The plan of a run, which `dry_run=true` prints after building every part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmrl.core.errors import LLMError
from llmrl.core.protocols import EstimatesCalls, GradientProposer
from llmrl.core.records import CallEstimate
from llmrl.core.seeding import Seeds
from llmrl.experiment import reference_line_runs, run_references
from llmrl.experiment.config_completion import groups_using_model
from llmrl.experiment.parts import Parts, count_proposals
from llmrl.experiment.prerequisites import PrerequisiteRun
from llmrl.experiment.reference_line_runs import read_measured_references
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider
from llmrl.llms.scripted import ScriptedChat
from llmrl.loops.compute_requests import Loop
from llmrl.loops.design import DesignLoop
from llmrl.loops.learn import LearnLoop
from llmrl.loops.reference_measurements import References
from llmrl.loops.rehearsals import estimate_seconds, measure_steps_per_second
from llmrl.principals.bandits import BanditPrincipal
from llmrl.principals.grid import FINE_GRID_POINTS, MIN_PLAYS, choose_arms
from llmrl.run.progress_bar import format_duration


def plan(config: Mapping[str, Any], parts: Parts, loop: Loop) -> list[tuple[str, str]]:
    """Return the plan of a run as pairs (subject, description).

    It lists parts, shapes, parameter counts, environment steps, time, and calls of language models with their costs.
    """
    spec = parts.env.spec
    continuous_space = spec.continuous_actions
    actions = f"{spec.n_actions} actions" if continuous_space is None else f"actions of {continuous_space.description}"
    rows = [
        (
            "env",
            f"{spec.name}: {spec.n_envs} games x {spec.n_agents} agents, {actions}, "
            f"horizon {spec.horizon or 'set by the engine'}",
        ),
        *((f"  {label}", value) for label, value in spec.about),
        *(
            (f"  {name}", f"[{spec.n_envs}, {spec.n_agents}{''.join(f', {n}' for n in space.shape)}] {space.dtype}")
            for name, space in spec.observation.items()
        ),
    ]
    if spec.mechanism is not None:
        rows.append(("mechanism", spec.mechanism.name))
        rows += [(f"  {p.name}", f"[{p.low:g}, {p.high:g}] {p.unit}") for p in spec.mechanism.parameters]
    rows += _build_regime_rows(config, parts, loop)
    properties = parts.agents[0].describe().items()
    rows.append(("agent", ", ".join(f"{k}: {v:,}" if isinstance(v, int) else f"{k}: {v}" for k, v in properties)))
    referenced_runs = run_references.list_referenced_runs(config)
    rows += [(run.purpose, run.plan_text) for run in referenced_runs]
    rows += _build_principal_rows(config, parts)
    rows += _build_teacher_rows(parts, loop)
    rows += _build_model_rows(parts)
    rows.append(("loop", type(loop).__name__))
    rows += loop.plan()
    measurement_runs = reference_line_runs.list_measurement_runs(config, parts, loop)
    rows += reference_line_runs.build_plan_rows(config, parts, loop, measurement_runs)
    rows += build_noise_rows(config, loop, measurement_runs)
    unfinished_runs = [run for run in (*referenced_runs, *measurement_runs) if not run.finished]
    if isinstance(loop, DesignLoop):
        total_steps = loop.env_steps + sum(run.env_steps for run in unfinished_runs)
        if unfinished_runs:
            rows.append(("environment steps in all", f"{total_steps:,}, with those of the runs to be computed first"))
        rows += _build_time_rows(config, parts, loop, total_steps)
    else:
        rows += _build_time_rows(config, parts, loop)
    estimate = loop.estimate()
    if isinstance(parts.llm, ChatClient) and estimate is not None:
        rows += build_call_rows(estimate, parts.llm)
    rows.append(("hardware", f"{config['hardware']['device']}, threads {config['hardware']['threads'] or 'default'}"))
    return rows


def _build_regime_rows(config: Mapping[str, Any], parts: Parts, loop: Loop) -> list[tuple[str, str]]:
    """Return a row on the regime, if there is one: whether agents were pre-trained, and how long they learn."""
    name = config.get("regime_name")
    if name is None:
        return []
    agents = "untrained agents" if config["agent"].get("init_from") is None else "pre-trained agents"
    if not parts.agents[0].learns:
        agents, length = "agents that do not learn", ""
    elif isinstance(loop, DesignLoop):
        rounds = loop.schedule.adapt_rounds
        length = f", {rounds:,} adaptation round{'s' * (rounds != 1)}"
    else:
        length = f", {config['learn']['env_steps']:,} environment steps" if isinstance(loop, LearnLoop) else ""
    return [("regime", f"{name} ({agents}{length})")]


def _build_time_rows(config: Mapping[str, Any], parts: Parts, loop: Loop, env_steps: int = 0) -> list[tuple[str, str]]:
    """Return the row on the time of a run and of its prerequisite runs, at the measured speed of this machine.

    `env_steps` is the number of environment steps of a design run and of the unfinished runs that it needs.
    """
    model_groups = (
        groups_using_model(config, ("agent", "teacher"), parts.resources.builder)
        if isinstance(parts.llm, ChatClient)
        else []
    )
    if "agent" in model_groups or (model_groups and not _has_only_scripted_models(parts.llm)):
        return [("time", "unknown: agents wait for replies of a language model, and none is requested here")]
    seeds = Seeds(config["seed"]).child("rehearsal")
    if isinstance(loop, DesignLoop):
        rate = measure_steps_per_second(loop.adaptation, seeds)
        wait_note = ", and the language model's replies" if isinstance(loop.principal, EstimatesCalls) else ""
        duration = format_duration(env_steps / rate)
        return [("time", f"about {duration} on this machine, at {rate:,.0f} environment steps/s{wait_note}")]
    seconds = estimate_seconds(loop, seeds)
    if seconds is None:
        return [("time", f"unknown: {type(loop).__name__} cannot be timed on a few steps")]
    length_note = "" if isinstance(loop, LearnLoop) else ", if games last as long as they can"
    waits_for_model = isinstance(parts.llm, ChatClient) and not _has_only_scripted_models(parts.llm)
    wait_note = ", and the language model's replies" if waits_for_model else ""
    return [("time", f"about {format_duration(seconds)} on this machine{length_note}{wait_note}")]


def _has_only_scripted_models(model: object) -> bool:
    return isinstance(model, ChatClient) and all(
        isinstance(endpoint.provider, ScriptedChat) for endpoint in model.endpoints.values()
    )


def build_call_rows(estimate: CallEstimate, client: ChatClient) -> list[tuple[str, str]]:
    """Return rows on the calls of language models in a run with an empty cache: their number, tokens and cost."""
    n_repairs = estimate.max_calls - estimate.calls
    rows = [
        ("LLM calls", f"{estimate.calls:,}" + (f", at most {estimate.max_calls:,} with repairs" if n_repairs else "")),
        ("  prompt tokens", f"about {estimate.prompt_tokens:,}"),
        ("  reply tokens", f"about {estimate.completion_tokens:,}"),
    ]
    providers = [client.endpoints[name].provider for name in estimate.fraction_by_model]
    expected, maximum = estimate_costs(estimate, client)
    if expected is None:
        return [*rows, ("  cost", "unknown: set llm.input_price and llm.output_price (US dollars per million tokens)")]
    budget = client.budget.usd
    if len(providers) > 1:
        rows += [
            (f"  {provider.label}", _format_cost(*_provider_costs(estimate, share, provider)))
            for provider, share in zip(providers, estimate.fraction_by_model.values(), strict=True)
        ]
    cost = ("  cost", _format_cost(expected, maximum))
    return [*rows, cost, *([] if budget is None else [("  budget", f"${budget:,.4g}")])]


def _format_cost(expected: float | None, maximum: float | None) -> str:
    return f"about ${expected:,.4g}" + ("" if maximum is None else f", at most ${maximum:,.4g}")


def estimate_costs(estimate: CallEstimate, client: ChatClient) -> tuple[float | None, float | None]:
    """Return expected and maximum cost, US dollars; None if prices or, for the maximum, longest replies are unknown."""
    costs = [
        _provider_costs(estimate, share, client.endpoints[name].provider)
        for name, share in estimate.fraction_by_model.items()
    ]
    return _sum_costs([expected for expected, _ in costs]), _sum_costs([maximum for _, maximum in costs])


def _sum_costs(costs: Sequence[float | None]) -> float | None:
    """Return the sum; None if a cost is unknown."""
    available = [cost for cost in costs if cost is not None]
    return sum(available) if len(available) == len(costs) else None


def _provider_costs(estimate: CallEstimate, share: float, provider: Provider) -> tuple[float | None, float | None]:
    """Return the expected and maximum cost of the calls that one model answers, `share` in [0, 1] of all calls."""
    max_reply_tokens = provider.max_reply_tokens
    input_tokens, output_tokens = (round(share * n) for n in (estimate.prompt_tokens, estimate.completion_tokens))
    expected = provider.cost(input_tokens, output_tokens, cached_tokens=0, cache_write_tokens=0)
    if expected is None or max_reply_tokens is None:
        return expected, None
    # Maximum: every reply has the maximum length and every possible repair occurs. The request of a repair repeats the
    # prompt and the invalid reply.
    n_repairs, max_calls = estimate.max_calls - estimate.calls, estimate.max_calls
    max_prompt_tokens = (estimate.prompt_tokens + estimate.n_quoted_replies * max_reply_tokens) * max_calls // max(
        estimate.calls, 1
    ) + n_repairs * max_reply_tokens
    return expected, provider.cost(round(share * max_prompt_tokens), round(share * max_calls * max_reply_tokens)) or 0.0


def _build_teacher_rows(parts: Parts, loop: Loop) -> list[tuple[str, str]]:
    """Return rows on the teacher and on the number of updates to whose loss it adds a term.

    The teacher's methods `describe` and `count_taught_updates` are optional.
    """
    teacher = parts.teacher
    if teacher is None:
        return [("teacher", "none")]
    describe, count_taught_updates = getattr(teacher, "describe", None), getattr(teacher, "count_taught_updates", None)
    description = (
        type(teacher).__name__ if describe is None else ", ".join(f"{key}: {text}" for key, text in describe().items())
    )
    if count_taught_updates is None or not parts.agents[0].learns:
        return [("teacher", description)]
    if isinstance(loop, DesignLoop):
        # The teacher's schedule restarts when agents are reset.
        settings, rounds = loop.settings, loop.schedule.adapt_rounds
        updates = rounds * (1 if settings.reset_agents else settings.steps)
        suffix = " of each principal step" if settings.reset_agents else ""
    else:
        updates, suffix = getattr(loop, "n_updates", 0), ""
    return [
        ("teacher", description),
        ("  teaches in", f"{count_taught_updates(updates):,} of the {updates:,} updates{suffix}"),
    ]


def _build_principal_rows(config: Mapping[str, Any], parts: Parts) -> list[tuple[str, str]]:
    """Return rows on the principal: its type, the mean number of measurements of an arm, and a warning if it is < 1."""
    principal = parts.principal
    if principal is None:
        return [("principal", "none")]
    description = type(principal).__name__
    if isinstance(principal, BanditPrincipal):
        mean_plays = count_proposals(config, parts.loop_kind) / principal.space.n_context_rows / principal.n_arms
        description += f": {principal.n_arms:,} arms, {mean_plays:.3g} measurements of each on average"
        description += " in a context" if principal.space.n_context_rows > 1 else ""
    warning = describe_arm_shortage(config, parts)
    return [("principal", description), *([] if warning is None else [("  but", warning)])]


def _build_model_rows(parts: Parts) -> list[tuple[str, str]]:
    """Return rows on the language model, with the reason if it cannot answer, such as a missing API key."""
    if parts.llm is None:
        return [("llm", "not used")]
    try:
        parts.llm.check()
    except LLMError as error:
        return [("llm", parts.llm.label), ("  but", str(error))]
    return [("llm", parts.llm.label)]


def describe_arm_shortage(config: Mapping[str, Any], parts: Parts) -> str | None:
    """Return a warning, with remedies, if a run has fewer proposals than its principal has arms; else None."""
    kind, principal = parts.loop_kind, parts.principal
    if not isinstance(principal, BanditPrincipal):
        return None
    n_proposals, n_arms, space = count_proposals(config, kind), principal.n_arms, principal.space
    n_plays = n_proposals // space.n_context_rows
    if n_plays >= n_arms:
        return None
    has_points_option = "points" in config["principal"]
    fewer_arms_fit = has_points_option and len(choose_arms(space, None, FINE_GRID_POINTS, n_proposals)) <= n_plays
    proposals_text = f"{n_plays:,} proposal{'s' * (n_plays != 1)}"
    if space.n_context_rows > 1:
        proposals_text = f"about {proposals_text} in each of {space.n_context_rows} contexts"
    steps_option, candidates = ("steps" if kind == "design" else "iterations"), config[kind]["candidates"]
    steps_override = f"{kind}.{steps_option}={-(-MIN_PLAYS * n_arms * space.n_context_rows // candidates)}"
    points_override = "principal.points=null (arms that fit the run) or " if fewer_arms_fit else ""
    return (
        f"{proposals_text}, {n_arms:,} arms: close to a random search, as {n_arms - n_plays:,} arms or more are never "
        f"played; set {points_override}{steps_override}, or choose a principal without arms (cem, cmaes, gp, llm)"
    )


MAX_RELATIVE_STANDARD_ERROR = 0.1
"""Standard error of a proposal, as a share of the objective's range, above which a plan advises more replicates."""


def build_noise_rows(config: Mapping[str, Any], loop: object, runs: Sequence[PrerequisiteRun]) -> list[tuple[str, str]]:
    """Return the rows of a plan about the standard error of a proposal's objective; none if it cannot be estimated.

    Args:
        config: resolved config of the run.
        loop: loop of the run.
        runs: prerequisite runs that measure the run's reference lines.
    """
    if not isinstance(loop, DesignLoop) or not loop.updates_per_round:
        return []
    settings, references = loop.settings, read_measured_references(runs)
    error, source = compute_relative_standard_error(references, settings.replicates), "from the reference lines"
    if error is None:
        source = f"from earlier measurements of regime={config['regime_name']}"
        error = None if (noise := config.get("regime_noise")) is None else noise / settings.replicates**0.5
    if error is None:
        return []
    rows = [("  standard error", f"about {100 * error:.2g} % of the objective's range a proposal, {source}")]
    if error > MAX_RELATIVE_STANDARD_ERROR and not isinstance(loop.principal, GradientProposer):
        candidates, replicates = increase_replicates(error, settings.candidates, settings.replicates)
        if candidates < settings.candidates:
            reduced_percentage = 100 * error * (settings.replicates / replicates) ** 0.5
            advice = f"design.candidates={candidates} design.replicates={replicates}"
            rows.append(("", f"{advice}: about {reduced_percentage:.2g} % at the same cost, with fewer proposals"))
    return rows


def compute_relative_standard_error(references: References | None, replicates: int) -> float | None:
    """Return the standard error of a measurement over `replicates` societies, as a share of the objective's range.

    The range is that of the coarse scan, averaged over contexts. None if it is 0 or the standard error is unknown.
    """
    error = None if references is None else references.compute_measurement_error(replicates)
    if references is None or error is None:
        return None
    objective_range = float(np.mean([references.get_scan_range(context.context) for context in references.contexts]))
    return error / objective_range if objective_range else None


def increase_replicates(error: float, candidates: int, replicates: int) -> tuple[int, int]:
    """Return numbers of candidates and of replicates with the same product but a smaller standard error.

    The number of candidates is the highest with a standard error of at most `MAX_RELATIVE_STANDARD_ERROR`, or else 1.

    Args:
        error: standard error with `replicates` societies, as a share of the objective's range.
        candidates: number of candidates of a principal step.
        replicates: number of societies of each candidate.

    >>> increase_replicates(0.2, 8, 1)
    (2, 4)
    """
    n_societies = candidates * replicates
    for n in range(candidates, 1, -1):
        if n_societies % n == 0 and error * (replicates * n / n_societies) ** 0.5 <= MAX_RELATIVE_STANDARD_ERROR:
            return n, n_societies // n
    return 1, n_societies
