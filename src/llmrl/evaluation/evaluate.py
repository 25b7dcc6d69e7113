"""Play a run's checkpoint for a number of seeded episodes, and write what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.analysis.comparison import counted
from llmrl.config.env_overrides import check_same_players, folder_name, parsed
from llmrl.config.input_digests import with_digests
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.option_files import content, root
from llmrl.core.protocols import Agent
from llmrl.core.seeding import Seeds
from llmrl.evaluation.adapting import Plan, adapted, planned
from llmrl.evaluation.evaluation_budget import announced, askers, refused, with_budget
from llmrl.evaluation.mechanisms import Imposed, asked_for, imposed
from llmrl.evaluation.players import build_players, without_teacher
from llmrl.evaluation.results import write_results
from llmrl.evaluation.saved_runs import SavedRun, alone, open_saved
from llmrl.evaluation.settings import EvaluationSettings, Teller
from llmrl.evaluation.stage import NO_FILMS, Stage
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import Config, Parts, build_parts
from llmrl.llms.client import ChatClient
from llmrl.llms.usage import UNDERSTOOD, llm_summary
from llmrl.run.content import RUN_KEY
from llmrl.run.files import inside
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import place_of, read_metrics


def evaluate_run(run: Path, settings: EvaluationSettings, tell: Teller) -> dict[str, Any]:
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
    asked = asked_for(settings.mechanisms)
    names, modes = list(settings.policies), settings.modes
    if len(asked) > 1 and len(names) * len(modes) > 1:
        raise ConfigError("several mechanisms are compared by one policy in one mode; name one of each")
    saved = open_saved(run, settings.trusted)
    config = saved.config
    if not settings.env:
        with_digests(config, only=["map_digest"])
    whole = {**config, "env": parsed(settings.env, config["env"])}
    config = whole if "teacher" in names else without_teacher(whole)
    plan = planned(settings.adapt, len(asked) > 1, names, saved.config)
    compared = [f"mechanism={','.join(x if x.isalpha() else f'[{x}]' for x in asked)}"] if len(asked) > 1 else []
    out = settings.out or inside(run, folder_name([*settings.env, *compared]))
    out.mkdir(parents=True, exist_ok=True)
    # An agent that needs a language model gets it.
    llm = build_llm(with_budget(alone(config if plan is None else whole), settings.calls), folder=out)
    parts = build_parts(config, llm, render=settings.video, play_only=True)
    try:
        [agent] = parts.agents
        spec, state = parts.env.spec, saved.state
        mechanisms, context = imposed(asked, settings.context, state, spec)
        if settings.env and "policy" in saved.agent:
            check_same_players(settings.env, saved.agent["policy"], agent.state_dict()["policy"])
        plan = _adapting(plan, settings, agent, mechanisms)
        players = build_players(names, whole, parts)
        asking = askers(names, config, llm)
        play = config.get("play", content(root() / "train.yaml")["play"])  # a run that learnt has no such section
        usual = play["episodes"] if asking else 100 if spec.deterministic else 10
        wanted = usual if settings.episodes is None else settings.episodes
        if asking:
            steps = [n for n in (settings.video_steps, spec.horizon) if n is not None]
            filmed = 0 if not settings.video or names[0] not in asking else min(steps, default=None)
            rounds = len(modes) * len(mechanisms)
            tell("What is asked, at most", announced(asking, parts, wanted, rounds, filmed, len(mechanisms)))
        seeds = Seeds(settings.seed).child("evaluate")
        states = [saved.agent] * len(mechanisms)
        if plan is not None:
            _announce(tell, plan, whole, parts, mechanisms)
            vectors = [each.vector for each in mechanisms if each.vector is not None]
            states = adapted(plan, saved.config, llm, vectors, context, seeds, saved.agent)
        judged = parts.objective, parts.spending_cost
        stage = Stage(settings, parts, players, modes, mechanisms, context, *judged, seeds, out, tell)
        films = stage.film(states) if settings.video else NO_FILMS
        found = stage.play(states, wanted, bool(asking))
    except BudgetExhausted as error:
        raise refused(error) from error
    finally:
        parts.close()
    about = _about(saved, settings, context, plan, stage)
    logged = read_metrics(run / METRICS_NAME)[: state[RUN_KEY]["metrics_lines"]]
    return write_results(stage, about, found, films, place_of(logged)) | {"out": str(out)}


def _about(
    saved: SavedRun, settings: EvaluationSettings, context: int | None, plan: Plan | None, stage: Stage
) -> dict[str, Any]:
    """What is said of an evaluation as a whole."""
    llm = stage.parts.llm
    return {
        "run": str(saved.folder),
        "checkpoint": saved.iteration,
        "env": list(settings.env),
        "seed": settings.seed,
        "context": None if context is None else stage.parts.env.spec.contexts[context],
        "society": saved.society if plan is None else None,
        "adapted": None if plan is None else plan.record(),
        "llm": None if llm is None else llm.label,
        "carried": stage.carried,
        **({} if llm is None else {k: v for k, v in llm_summary(llm).items() if k in UNDERSTOOD}),
    }


def _adapting(
    plan: Plan | None, settings: EvaluationSettings, agent: Agent, mechanisms: Sequence[Imposed]
) -> Plan | None:
    """The plan, if there is anything to adapt, and to adapt to."""
    if plan is None or (not agent.learns and settings.adapt is None):
        return None
    if not agent.learns:
        raise ConfigError("adapt: the agents of this run do not learn; leave it out")
    if any(each.vector is None for each in mechanisms):
        raise ConfigError("adapt: nobody has proposed anything in this run; name a mechanism, such as 0,2,0")
    return plan


def _announce(tell: Teller, plan: Plan, whole: Config, parts: Parts, mechanisms: Sequence[Imposed]) -> None:
    """Say what adapting will take: it is the longer part, and a teacher may ask a language model."""
    n = len(mechanisms)
    words = ", ".join(each.title for each in mechanisms)
    tell(f"{counted(plan.rounds, 'round')} of {counted(plan.games, 'game')} to adapt to: {words}")
    if isinstance(parts.llm, ChatClient) and askers(["teacher"], whole, parts.llm):
        rows = [("model", parts.llm.label), ("episodes", f"{n * plan.rounds * plan.games:,} with a teacher")]
        tell("What adapting asks", [*rows, ("LLM calls", "unknown; calls (--calls) limits them")])
