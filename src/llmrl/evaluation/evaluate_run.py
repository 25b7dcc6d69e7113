"""Evaluation of the agents of a run in one environment, and the files of its results."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.config.builder import Config
from llmrl.config.input_digests import with_digests
from llmrl.config.overrides import make_evaluation_folder_name, parse_env_changes
from llmrl.core.errors import BudgetExhausted, ConfigError, RunFolderError
from llmrl.core.option_files import get_root, read_file
from llmrl.core.protocols import Agent
from llmrl.core.records import State
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.welfare_measures import Objective
from llmrl.evaluation.evaluated_mechanisms import (
    AdaptationPlan,
    EvaluatedMechanism,
    adapt_societies,
    parse_mechanisms,
    plan_adaptation,
    select_mechanisms,
)
from llmrl.evaluation.planned_evaluation import (
    PlannedEvaluation,
    PlayerMode,
    Videos,
    build_players,
    describe_llm_calls,
    explain_exhausted_budget,
    find_llm_players,
)
from llmrl.evaluation.saved_runs import SavedRun, change_llm_budget, read_saved_run, remove_principal, remove_teacher
from llmrl.evaluation.settings import EvaluationSettings, Reporter
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import Parts, build_parts
from llmrl.llms.client import ChatClient
from llmrl.llms.usage import VALIDITY_KEYS, summarize_llm_usage
from llmrl.results.mechanism_comparison import (
    compare_with_reference,
    describe_differences,
    format_count,
    select_table_columns,
)
from llmrl.rollout.episode_summaries import compute_objective, compute_welfare, describe_measurements
from llmrl.run.artifacts import CONFIG_NAME
from llmrl.run.files import check_no_links, path_inside, write_json

Columns = Mapping[str, np.ndarray]
"""Values of each metric, [n_episodes], by name; NaN in episodes without a value."""


def name_objective_column(objective: Objective) -> str:
    """Return the name of the objective's column in tables of episodes."""
    return f"objective ({objective.name})"


def compute_columns(episodes: Sequence[Episode], spec: EnvSpec, objective: Objective, spending_cost: float) -> Columns:
    """Return columns with each episode's objective, returns, length, welfare and metrics of the environment."""
    # Welfare measures of a single agent are omitted, because they equal its return.
    welfare = compute_welfare(episodes, objective) if spec.n_agents > 1 else {}
    return {
        name_objective_column(objective): compute_objective(episodes, objective, spending_cost),
        "return per agent": np.array([episode.returns.mean() for episode in episodes]),
        "base return per agent": np.array([episode.base_returns for episode in episodes]).mean(1),
        "length": np.array([float(episode.length) for episode in episodes]),
        **{f"welfare/{name}": values for name, values in welfare.items()},
        **{name: np.array([episode.summaries[name] for episode in episodes]) for name in spec.metrics},
    }


def write_episodes(
    path: Path, player_headings: Sequence[str], columns_by_player: Mapping[tuple[str, ...], Columns]
) -> None:
    """Write a CSV file with a row for each episode.

    Args:
        path: path of the file.
        player_headings: headings of the columns that identify a player, such as `policy` and `mode`.
        columns_by_player: columns of each player; a key has the player's cells under `player_headings`.
    """
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer: Any = csv.writer(stream, lineterminator="\n")
        writer.writerow([*player_headings, "episode", *next(iter(columns_by_player.values()))])
        for player, player_columns in columns_by_player.items():
            for episode, values in enumerate(zip(*player_columns.values(), strict=True)):
                writer.writerow([*player, episode, *(f"{value:.6g}" for value in values)])


def write_results(
    evaluation: PlannedEvaluation,
    description: Mapping[str, Any],
    mechanism_episodes: Sequence[Mapping[PlayerMode, Sequence[Episode]]],
    videos: Videos,
) -> dict[str, Any]:
    """Write `results.json` and `episodes.csv` of an evaluation; return the content of `results.json`.

    Args:
        evaluation: evaluation that was played.
        description: fields of `results.json` that describe the evaluation.
        mechanism_episodes: for each mechanism, the episodes of each player in each mode.
        videos: paths of recorded videos.
    """
    is_comparison, out, objective = evaluation.is_comparison, evaluation.out, evaluation.parts.objective
    spec, spending_cost = evaluation.parts.env.spec, evaluation.parts.spending_cost
    mechanism_results: list[dict[str, Any]] = []
    columns_by_player: dict[tuple[str, ...], Columns] = {}
    for mechanism, player_episodes in zip(evaluation.mechanisms, mechanism_episodes, strict=True):
        columns = {
            player: compute_columns(episodes, spec, objective, spending_cost)
            for player, episodes in player_episodes.items()
        }
        mechanism_results.append(_summarize_mechanism(evaluation, mechanism, columns, videos))
        columns_by_player |= {(*([mechanism.name] * is_comparison), *player): x for player, x in columns.items()}
    results = {**description, "episodes": len(next(iter(mechanism_episodes[0].values())))}
    if is_comparison:
        results |= {"mechanisms": mechanism_results, **_summarize_comparison(evaluation, mechanism_results, videos)}
    else:
        results |= mechanism_results[0]
    write_json(out / "results.json", results)
    write_episodes(out / "episodes.csv", [*["mechanism"] * is_comparison, "policy", "mode"], columns_by_player)
    return results


def _summarize_mechanism(
    evaluation: PlannedEvaluation,
    mechanism: EvaluatedMechanism,
    player_columns: Mapping[PlayerMode, Columns],
    videos: Videos,
) -> dict[str, Any]:
    """Return the results under one mechanism; the fields `table` and `per_episode` are those of the first player."""
    vector, space = mechanism.vector, evaluation.parts.env.spec.mechanism
    players = [
        {
            "policy": name,
            "mode": mode,
            "table": describe_measurements(values, not (name == "student" and evaluation.carried_state_names)),
            "per_episode": {column: numbers.tolist() for column, numbers in values.items()},
        }
        for (name, mode), values in player_columns.items()
    ]
    return {
        "name": mechanism.name,
        "words": mechanism.values_text,
        "mechanism": None if vector is None or space is None else dict(zip(space.names, vector.tolist(), strict=True)),
        "players": players,
        "table": players[0]["table"],
        "per_episode": players[0]["per_episode"],
        "videos": [str(path) for path in videos.paths_by_mechanism.get(mechanism.name, ())],
    }


def _summarize_comparison(
    evaluation: PlannedEvaluation, mechanism_results: Sequence[Mapping[str, Any]], videos: Videos
) -> dict[str, Any]:
    """Return the fields of `results.json` that only a comparison of several mechanisms has."""
    spec, objective = evaluation.parts.env.spec, evaluation.parts.objective
    column, cost = name_objective_column(objective), evaluation.parts.spending_cost
    mean_differences = compare_with_reference(mechanism_results, spec.deterministic, not evaluation.carried_state_names)
    return {
        "paired": spec.deterministic,
        "objective": {"column": column, "formula": objective.formula, "spending_cost": cost},
        "labels": select_table_columns(mechanism_results, spec),
        "differences": mean_differences,
        "sentences": describe_differences(mechanism_results, mean_differences, column),
        "videos": [str(path) for path in videos.side_by_side],
    }


def evaluate_run(run: Path, settings: EvaluationSettings, report: Reporter) -> dict[str, Any]:
    """Evaluate a run; return the content of `results.json` and, under the key `out`, the folder of the results.

    Args:
        run: run folder.
        settings: settings of the evaluation.
        report: function that shows progress messages.

    Raises:
        ConfigError: the config names code that is not trusted, a mechanism is out of bounds, or settings do not fit.
        CheckpointError: the folder is not a run folder, or has no intact checkpoint.
        LLMError: a language model does not reply, or its budget is exhausted.
    """
    mechanism_names, player_names = parse_mechanisms(settings.mechanisms), list(settings.policies)
    if len(mechanism_names) > 1 and len(player_names) * len(settings.modes) > 1:
        raise ConfigError(
            f"mechanism={','.join(mechanism_names)}: several mechanisms need a single policy and a single mode; name "
            "one of each"
        )
    saved_run = read_saved_run(run, settings.trusted)
    if not settings.env:
        with_digests(saved_run.config, only=["map_digest"])
    full_config = {**saved_run.config, "env": parse_env_changes(settings.env, saved_run.config["env"])}
    config = full_config if "teacher" in player_names else remove_teacher(full_config)
    plan = plan_adaptation(settings.adapt, len(mechanism_names) > 1, player_names, saved_run.config)
    out = _create_output_folder(run, settings, mechanism_names)
    llm_config = remove_principal(config if plan is None else full_config)
    llm = build_llm(change_llm_budget(llm_config, settings.calls), folder=out)
    parts = build_parts(config, llm, render=settings.video, play_only=True)
    try:
        [agent] = parts.agents
        mechanisms, context = select_mechanisms(mechanism_names, settings.context, saved_run.loop_state, parts.env.spec)
        if settings.env:
            _check_weights_fit(agent, saved_run, settings.env)
        plan = _check_adaptation(plan, settings, agent, mechanisms)
        players, seeds = build_players(player_names, full_config, parts), Seeds(settings.seed).child("evaluate")
        evaluation = PlannedEvaluation(settings, parts, players, mechanisms, context, seeds, out, report)
        llm_players = find_llm_players(player_names, config, llm)
        n_episodes = _choose_n_episodes(settings, config, parts, bool(llm_players))
        if llm_players:
            report("Requests to the language model, at most", _describe_llm_calls(evaluation, llm_players, n_episodes))
        states: list[State] = [saved_run.agent_state] * len(mechanisms)
        if plan is not None:
            _report_adaptation(evaluation, plan, full_config)
            vectors = [mechanism.vector for mechanism in mechanisms if mechanism.vector is not None]
            states = adapt_societies(plan, saved_run.config, llm, vectors, context, seeds, saved_run.agent_state)
        videos = evaluation.record_videos(states) if settings.video else Videos()
        mechanism_episodes = evaluation.play_episodes(states, n_episodes, bool(llm_players))
    except BudgetExhausted as error:
        raise explain_exhausted_budget(error) from error
    finally:
        parts.close()
    return write_results(evaluation, _describe_evaluation(saved_run, plan, evaluation), mechanism_episodes, videos) | {
        "out": str(out)
    }


def _check_weights_fit(agent: Agent, saved_run: SavedRun, changes: Sequence[str]) -> None:
    """Raise ConfigError if the saved weights do not fit the agent in the environment with `changes`."""
    try:
        agent.load_state_dict(saved_run.agent_state)
    except RuntimeError as error:  # of torch, with the names and shapes of the weights
        raise ConfigError(f"--env {' '.join(changes)}: the agents of this run do not fit: {error}") from error


def _create_output_folder(run: Path, settings: EvaluationSettings, mechanism_names: Sequence[str]) -> Path:
    """Create the folder of the results and return it; raise RunFolderError if it is a run folder."""
    changes = list(settings.env)
    if len(mechanism_names) > 1:
        changes.append(f"mechanism={','.join(x if x.isalpha() else f'[{x}]' for x in mechanism_names)}")
    out = settings.out or path_inside(run, make_evaluation_folder_name(changes))
    if (out / CONFIG_NAME).exists():
        raise RunFolderError(f"out={out} is a run folder, whose results would be lost; use e.g. {out / 'evaluation'}")
    out.mkdir(parents=True, exist_ok=True)
    if settings.out is None:
        check_no_links(out)
    return out


def _choose_n_episodes(settings: EvaluationSettings, config: Config, parts: Parts, uses_llm: bool) -> int:
    """Return `settings.episodes`, or the default number of episodes of each player."""
    if settings.episodes is not None:
        return settings.episodes
    if uses_llm:
        play = config.get("play", read_file(get_root() / "train.yaml")["play"])  # runs that learned have no `play`
        return int(play["episodes"])
    return 100 if parts.env.spec.deterministic else 10


def _describe_llm_calls(
    evaluation: PlannedEvaluation, llm_players: Sequence[str], n_episodes: int
) -> list[tuple[str, str]]:
    """Return the number of calls of `llm_players` to the chat model and their cost, as pairs (label, text)."""
    settings, n_mechanisms = evaluation.settings, len(evaluation.mechanisms)
    limits = [limit for limit in (settings.video_steps, evaluation.parts.env.spec.horizon) if limit is not None]
    has_llm_video = settings.video and settings.policies[0] in llm_players
    video_steps = min(limits, default=None) if has_llm_video else 0
    n_combinations = len(settings.modes) * n_mechanisms
    return describe_llm_calls(llm_players, evaluation.parts, n_episodes, n_combinations, video_steps, n_mechanisms)


def _describe_evaluation(run: SavedRun, plan: AdaptationPlan | None, evaluation: PlannedEvaluation) -> dict[str, Any]:
    """Return the fields of `results.json` that describe the evaluation."""
    llm, context, settings = evaluation.parts.llm, evaluation.context, evaluation.settings
    return {
        "run": str(run.folder),
        "checkpoint": run.iteration,
        "env": list(settings.env),
        "seed": settings.seed,
        "context": evaluation.parts.env.spec.get_context_name(context),
        "society": run.society_index if plan is None else None,
        "adapted": None if plan is None else asdict(plan),
        "llm": None if llm is None else llm.label,
        "carried": evaluation.carried_state_names,
        **({} if llm is None else {key: x for key, x in summarize_llm_usage(llm).items() if key in VALIDITY_KEYS}),
    }


def _check_adaptation(
    plan: AdaptationPlan | None, settings: EvaluationSettings, agent: Agent, mechanisms: Sequence[EvaluatedMechanism]
) -> AdaptationPlan | None:
    """Return the plan, or None if agents do not learn; raise ConfigError if a requested adaptation is impossible."""
    if plan is None or (not agent.learns and settings.adapt is None):
        return None
    if not agent.learns:
        raise ConfigError("adapt=true needs agents that learn, and those of this run do not; remove adapt")
    if any(mechanism.vector is None for mechanism in mechanisms):
        raise ConfigError("adapt=true: this run has no proposals to adapt to; name a mechanism, such as 0,2,0")
    return plan


def _report_adaptation(evaluation: PlannedEvaluation, plan: AdaptationPlan, full_config: Config) -> None:
    """Report the length of the adaptation and, if a teacher calls a language model, the number of episodes with it."""
    llm, n_mechanisms = evaluation.parts.llm, len(evaluation.mechanisms)
    titles = ", ".join(mechanism.title for mechanism in evaluation.mechanisms)
    duration = f"{format_count(plan.rounds, 'round')} of {format_count(plan.games, 'game')}"
    evaluation.report(f"adapting for {duration} to: {titles}")
    if isinstance(llm, ChatClient) and find_llm_players(["teacher"], full_config, llm):
        rows = [("model", llm.label), ("episodes", f"{n_mechanisms * plan.rounds * plan.games:,} with a teacher")]
        evaluation.report(
            "Requests to the language model during adaptation",
            [*rows, ("LLM calls", "unknown; calls (--calls) limits them")],
        )
