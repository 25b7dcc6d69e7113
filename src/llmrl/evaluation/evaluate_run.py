"""Play a run's checkpoint for a number of seeded episodes, and write what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.analysis.mechanism_comparison import counted
from llmrl.config.env_overrides import check_same_players, folder_name, parsed
from llmrl.config.input_digests import with_digests
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.option_files import content, root
from llmrl.core.protocols import Agent
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.evaluation.evaluate_environment import PlannedEvaluation, Videos
from llmrl.evaluation.evaluated_mechanisms import (
    AdaptationPlan,
    EvaluatedMechanism,
    adapt_societies,
    mechanisms_asked_for,
    parse_mechanisms,
    plan_adaptation,
)
from llmrl.evaluation.players import announced, build_players, llm_players, refused
from llmrl.evaluation.result_files import write_results
from llmrl.evaluation.saved_runs import SavedRun, alone, open_saved, with_budget, without_teacher
from llmrl.evaluation.settings import EvaluationSettings, Reporter
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import Config, Parts, build_parts
from llmrl.llms.client import ChatClient
from llmrl.llms.usage import UNDERSTOOD, llm_summary
from llmrl.run.artifacts import RUN_KEY
from llmrl.run.files import inside, refuse_links
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import place_of, read_metrics


def evaluate_run(run: Path, settings: EvaluationSettings, tell: Reporter) -> dict[str, Any]:
    """Play, and return the results that were saved, with `out`, their folder.

    Args:
        run: folder of the run.
        settings: what is asked.
        tell: is told what goes on.

    Raises:
        ConfigError, CheckpointError: the folder is no run, has no whole checkpoint, names code that is not trusted, or
            the mechanism is out of bounds.
        LLMError: a language model that plays does not answer, or its budget is used up.
    """
    asked, names = parse_mechanisms(settings.mechanisms), list(settings.policies)
    if len(asked) > 1 and len(names) * len(settings.modes) > 1:
        raise ConfigError("several mechanisms are compared by one policy in one mode; name one of each")
    saved = open_saved(run, settings.trusted)
    whole = _config(saved, settings)
    config = whole if "teacher" in names else without_teacher(whole)
    plan = plan_adaptation(settings.adapt, len(asked) > 1, names, saved.config)
    out = _folder(run, settings, asked)
    # An agent that needs a language model gets it.
    llm = build_llm(with_budget(alone(config if plan is None else whole), settings.calls), folder=out)
    parts = build_parts(config, llm, render=settings.video, play_only=True)
    try:
        [agent] = parts.agents
        mechanisms, context = mechanisms_asked_for(asked, settings.context, saved.state, parts.env.spec)
        if settings.env and "policy" in saved.agent:
            check_same_players(settings.env, saved.agent["policy"], agent.state_dict()["policy"])
        plan = _adapting(plan, settings, agent, mechanisms)
        players, seeds = build_players(names, whole, parts), Seeds(settings.seed).child("evaluate")
        evaluation = PlannedEvaluation(settings, parts, players, mechanisms, context, seeds, out, tell)
        asking = llm_players(names, config, llm)
        episodes = _episodes(settings, config, parts, bool(asking))
        if asking:
            tell("What is asked, at most", _announced(evaluation, asking, episodes))
        states: list[State] = [saved.agent] * len(mechanisms)
        if plan is not None:
            _announce_adapting(evaluation, plan, whole)
            vectors = [each.vector for each in mechanisms if each.vector is not None]
            states = adapt_societies(plan, saved.config, llm, vectors, context, seeds, saved.agent)
        videos = evaluation.film(states) if settings.video else Videos()
        found = evaluation.play(states, episodes, bool(asking))
    except BudgetExhausted as error:
        raise refused(error) from error
    finally:
        parts.close()
    logged = read_metrics(run / METRICS_NAME)[: saved.state[RUN_KEY]["metrics"]["lines"]]
    return write_results(evaluation, _about(saved, plan, evaluation), found, videos, place_of(logged)) | {
        "out": str(out)
    }


def _config(saved: SavedRun, settings: EvaluationSettings) -> dict[str, Any]:
    """The run's config, with the options of the environment that are to be others."""
    if not settings.env:
        with_digests(saved.config, only=["map_digest"])
    return {**saved.config, "env": parsed(settings.env, saved.config["env"])}


def _folder(run: Path, settings: EvaluationSettings, asked: Sequence[str]) -> Path:
    """Where results go; it is made."""
    compared = [f"mechanism={','.join(x if x.isalpha() else f'[{x}]' for x in asked)}"] if len(asked) > 1 else []
    out = settings.out or inside(run, folder_name([*settings.env, *compared]))
    out.mkdir(parents=True, exist_ok=True)
    if settings.out is None:
        refuse_links(out)
    return out


def _episodes(settings: EvaluationSettings, config: Config, parts: Parts, asking: bool) -> int:
    """Episodes of each player: what is wanted, else what is usual."""
    play = config.get("play", content(root() / "train.yaml")["play"])  # a run that learnt has no such section
    usual = play["episodes"] if asking else 100 if parts.env.spec.deterministic else 10
    return int(usual) if settings.episodes is None else settings.episodes


def _announced(evaluation: PlannedEvaluation, asking: Sequence[str], episodes: int) -> list[tuple[str, str]]:
    """What the players `asking` will ask, rows (what, value)."""
    settings, n = evaluation.settings, len(evaluation.mechanisms)
    steps = [limit for limit in (settings.video_steps, evaluation.parts.env.spec.horizon) if limit is not None]
    filmed = 0 if not settings.video or settings.policies[0] not in asking else min(steps, default=None)
    return announced(asking, evaluation.parts, episodes, len(settings.modes) * n, filmed, n)


def _about(saved: SavedRun, plan: AdaptationPlan | None, evaluation: PlannedEvaluation) -> dict[str, Any]:
    """What is said of an evaluation as a whole."""
    llm, context, settings = evaluation.parts.llm, evaluation.context, evaluation.settings
    return {
        "run": str(saved.folder),
        "checkpoint": saved.iteration,
        "env": list(settings.env),
        "seed": settings.seed,
        "context": None if context is None else evaluation.parts.env.spec.contexts[context],
        "society": saved.society if plan is None else None,
        "adapted": None if plan is None else plan.record(),
        "llm": None if llm is None else llm.label,
        "carried": evaluation.carried,
        **({} if llm is None else {k: v for k, v in llm_summary(llm).items() if k in UNDERSTOOD}),
    }


def _adapting(
    plan: AdaptationPlan | None, settings: EvaluationSettings, agent: Agent, mechanisms: Sequence[EvaluatedMechanism]
) -> AdaptationPlan | None:
    """The plan, if there is anything to adapt, and to adapt to."""
    if plan is None or (not agent.learns and settings.adapt is None):
        return None
    if not agent.learns:
        raise ConfigError("adapt: the agents of this run do not learn; leave it out")
    if any(each.vector is None for each in mechanisms):
        raise ConfigError("adapt: nobody has proposed anything in this run; name a mechanism, such as 0,2,0")
    return plan


def _announce_adapting(evaluation: PlannedEvaluation, plan: AdaptationPlan, whole: Config) -> None:
    """Say what adapting will take: it is the longer part, and a teacher may ask a language model."""
    llm, n = evaluation.parts.llm, len(evaluation.mechanisms)
    words = ", ".join(each.title for each in evaluation.mechanisms)
    evaluation.tell(f"{counted(plan.rounds, 'round')} of {counted(plan.games, 'game')} to adapt to: {words}")
    if isinstance(llm, ChatClient) and llm_players(["teacher"], whole, llm):
        rows = [("model", llm.label), ("episodes", f"{n * plan.rounds * plan.games:,} with a teacher")]
        evaluation.tell("What adapting asks", [*rows, ("LLM calls", "unknown; calls (--calls) limits them")])
