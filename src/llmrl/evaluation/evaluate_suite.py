"""Evaluation of the agent of a run in every environment of a suite (docs/generalization.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.config.builder import Builder, Config
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.printable import printable
from llmrl.core.protocols import Agent, Policy
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.core.services import EnvServices
from llmrl.core.spaces import EnvSpec
from llmrl.evaluation.planned_evaluation import (
    BASELINE_POLICIES,
    build_recording_collector,
    describe_llm_calls,
    explain_exhausted_budget,
    find_llm_players,
)
from llmrl.evaluation.saved_runs import SavedRun, change_llm_budget, read_saved_run, remove_principal, remove_teacher
from llmrl.evaluation.settings import EvaluationSettings, Reporter
from llmrl.evaluation.suite import Suite, SuiteTest, load_suite, parse_suite
from llmrl.evaluation.suite_results import STUDENT, summarize_test, write_suite
from llmrl.experiment.build_env import build_env
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import Parts, build_parts
from llmrl.rollout.collector import evaluate_policy
from llmrl.run.files import check_no_links, path_inside
from llmrl.statistics.estimators import proportion

SUITE_PLAYERS = (STUDENT, "random", "bot")


def evaluate_suite(
    run: Path, suite: str, settings: EvaluationSettings, report: Reporter, changes: Sequence[str] = ()
) -> dict[str, Any]:
    """Evaluate a run in a suite; write and return the results.

    Args:
        run: run folder.
        suite: name of a suite, or path of a `.yaml` file.
        settings: settings of the evaluation. Its mechanisms are ignored; a context, `mode=both` and videos are errors.
        report: function that shows progress messages.
        changes: texts `key=value` that override keys of the suite.

    Returns:
        The results, with their folder under the key `out`.

    Raises:
        LlmrlError: the folder is not a run folder, the suite is invalid or is for another environment, or no test can
            be played.
    """
    suite_name, suite_content = load_suite(suite, changes, settings.episodes)
    players = _check_players(settings)
    saved_run = read_saved_run(run, settings.trusted)
    if settings.out is None:
        out = path_inside(run, "evaluation", f"suite_{suite_name}")
        check_no_links(out)
    else:
        out = settings.out / f"suite_{suite_name}"
    results = _play_suite(saved_run, players, settings, suite_name, suite_content, out, report)
    tests = results["tests"]
    if not any(player for test in tests for player in test["players"].values()):
        raise ConfigError(f"suite={suite_name}: no test could be played; {next(iter(tests[0]['refused'].values()))}")
    return results


def _check_players(settings: EvaluationSettings) -> list[str]:
    """Return the names of the players in `settings.policies` without duplicates.

    Raises:
        ConfigError: a setting is not supported with suites, or a player is unknown.
    """
    is_set_by_setting = {
        "video": settings.video,
        "mechanism": tuple(settings.mechanisms) != EvaluationSettings.mechanisms,
        "adapt": settings.adapt is not None,
        "context": settings.context is not None,
        "env": bool(settings.env),
        "mode=both": settings.mode == "both",
    }
    if invalid := [setting for setting, is_set in is_set_by_setting.items() if is_set]:
        raise ConfigError(f"{invalid[0]} cannot be used with a suite; remove it")
    players = list(dict.fromkeys(settings.policies))
    if unknown := [name for name in players if name not in SUITE_PLAYERS]:
        choices = ", ".join(SUITE_PLAYERS)
        raise ConfigError(f"policy={unknown[0]} is unknown in a suite; use {choices}, several with commas")
    return players


def _play_suite(
    saved_run: SavedRun,
    player_names: Sequence[str],
    settings: EvaluationSettings,
    suite_name: str,
    suite_content: Mapping[str, Any],
    out: Path,
    report: Reporter,
) -> dict[str, Any]:
    """Play a suite with the agent of one run and other players; write the results into `out` and return them.

    Args:
        saved_run: run whose agent plays.
        player_names: names of the players.
        settings: settings of the evaluation.
        suite_name: name of the suite.
        suite_content: content of the suite's file, with changes.
        out: folder of the results.
        report: function that shows progress messages.

    Raises:
        LlmrlError: the suite is invalid, or is for another environment.
    """
    config = remove_teacher(saved_run.config)
    suite = parse_suite(suite_name, suite_content, config["env"])
    if suite_content.get("n_envs") is not None:
        config = {**config, "env": {**config["env"], "n_envs": suite_content["n_envs"]}}
    out.mkdir(parents=True, exist_ok=True)
    llm = build_llm(change_llm_budget(remove_principal(config), settings.calls), folder=out)
    parts = build_parts(config, llm, render=False, play_only=True)
    results: dict[str, Any] = {
        "suite": suite_name,
        "run": str(saved_run.folder),
        "checkpoint": saved_run.iteration,
        "seed": settings.seed,
        "mode": settings.mode,
        "episodes": suite.n_episodes,
        "intervals": "95%, Wilson, of one agent's episodes; of the mean over kinds, Zou and Donner",
        "llm": None if llm is None else llm.label,
        "players": list(player_names),
        "tests": [],
    }
    try:
        [agent] = parts.agents
        agent.load_state_dict(saved_run.loop_state["agents"][0])
        if llm_players := find_llm_players(player_names, config, llm):
            n_episodes = suite.n_episodes * sum(max(len(test.kinds), 1) for test in suite.tests)
            rows = describe_llm_calls(llm_players, parts, n_episodes, n_combinations=1, video_steps=0)
            report("Requests to the language model, at most", rows)
        for i, test in enumerate(suite.tests):
            test_results = summarize_test(_play_test(test, suite, parts, config, settings, player_names, out))
            results["tests"].append(test_results)
            score_texts = [
                f"{name} {test_results['refused'][name] if player is None else format(player['success'], '.2f')}"
                for name, player in test_results["players"].items()
            ]
            report(printable(f"{i + 1} of {len(suite.tests)}, {test.title}: {', '.join(score_texts)}", multiline=False))
            write_suite(results, out)
    except BudgetExhausted as error:
        raise explain_exhausted_budget(error) from error
    finally:
        parts.close()
    return {**results, "out": str(out)}


def _play_test(
    test: SuiteTest,
    suite: Suite,
    parts: Parts,
    config: Config,
    settings: EvaluationSettings,
    player_names: Sequence[str],
    out: Path,
) -> dict[str, Any]:
    """Play one test of a suite; return the statistics of each player in each kind of task.

    In the result, `refused` has the error of each player that cannot play the test, and `lacking` has the reason for
    each kind of task that is impossible with the available actions.
    """
    run_spec = parts.env.spec
    player_statistics: dict[str, dict[str, Any]] = {name: {} for name in player_names}
    error_by_player: dict[str, str] = {}
    impossible_kinds: dict[str, str] = {}  # kind -> reason
    for kind, env_options in test.build_options_by_kind(run_spec.action_names):
        seeds = Seeds(settings.seed).child("suite").child(test.name).child(kind)
        try:
            env = build_env(env_options, Builder(EnvServices(seeds.child("env")), config["trusted_modules"]))
        except ConfigError as error:
            error_by_player |= {name: str(error) for name in player_names}
            break
        with closing(env):
            try:
                test.check_possible(kind, run_spec, env.spec)
            except ConfigError as error:
                impossible_kinds[kind] = str(error)
                continue
            for name in [name for name in player_names if name not in error_by_player]:
                folder = out / "steps" / test.name / kind / name if settings.trajectories else None
                try:
                    if name in BASELINE_POLICIES:
                        policy = BASELINE_POLICIES[name](env.spec)
                    else:
                        policy = _adapt_policy(parts.agents[0], run_spec, env.spec, test.changed_channels)
                    suite.check_metric(env.spec)
                    collector = build_recording_collector(env, policy, parts.device, folder)
                    # Equal seeds give all players the same games.
                    episode_seeds, greedy = seeds.child("episodes"), settings.mode == "deterministic"
                    episodes = evaluate_policy(collector, suite.n_episodes, episode_seeds, greedy, exactly=True)
                    collector.close()
                except ConfigError as error:
                    error_by_player[name] = str(error)
                else:
                    player_statistics[name][kind] = _compute_statistics(episodes, suite.metric)
    for name in player_names:
        if impossible_kinds and not player_statistics[name] and name not in error_by_player:
            error_by_player[name] = "; ".join(impossible_kinds.values())
    description = {
        "name": test.name,
        "title": test.title,
        "description": test.description,
        "env": test.build_env_options(run_spec.action_names),
    }
    players = {name: None if name in error_by_player else player_statistics[name] for name in player_names}
    return {**description, "players": players, "refused": error_by_player, "lacking": impossible_kinds}


def _adapt_policy(agent: Agent, run_spec: EnvSpec, test_spec: EnvSpec, changed_channels: Sequence[str]) -> Policy:
    """Adapt an agent to the environment of a test, if it can adapt, and return its policy.

    Args:
        agent: agent that plays.
        run_spec: specification of the environment in which the agent was trained.
        test_spec: specification of the environment of the test.
        changed_channels: channels that the test changes; empty: agents with any channels can play it.

    Raises:
        ConfigError: the agent has another number of actions and cannot adapt, reads a channel that is missing or has
            another format, or reads none of the channels that the test changes.
    """
    if changed_channels and not set(changed_channels) & set(agent.policy.channels):
        channels_text = " and ".join(changed_channels)
        raise ConfigError(
            f"the test changes only {channels_text}, and the agent reads {', '.join(agent.policy.channels)}"
        )
    for name in agent.policy.channels:
        if name not in test_spec.observation:
            raise ConfigError(f"the agent reads the channel {name!r}, which the environment of the test lacks")
        run_channel, test_channel = run_spec.observation[name], test_spec.observation[name]
        if any(getattr(run_channel, x) != getattr(test_channel, x) for x in ("shape", "dtype", "codes")):
            raise ConfigError(
                f"the agent reads the channel {name!r}, which has another format in the test than in training"
            )
    if hasattr(agent, "adapt"):
        agent.adapt(test_spec)
    elif test_spec.n_actions != run_spec.n_actions:
        raise ConfigError(f"the agent chooses one of {run_spec.n_actions} actions, and there are {test_spec.n_actions}")
    return agent.policy


def _compute_statistics(episodes: Sequence[Episode], metric: str) -> dict[str, Any]:
    """Return statistics of the episodes of one kind of task.

    Keys: `episodes`, `successes`, `success` with Wilson's 95% interval `low`, `high`, mean `return` (of the level's own
    rewards) and mean `length`.
    """
    n_successes = sum(episode.summaries[metric] > 0 for episode in episodes)
    success_rate = proportion(n_successes, len(episodes))
    return {
        "episodes": len(episodes),
        "successes": n_successes,
        "success": success_rate.estimate,
        "low": success_rate.low,
        "high": success_rate.high,
        "return": float(np.mean([episode.base_returns.mean() for episode in episodes])),
        "length": float(np.mean([episode.length for episode in episodes])),
    }
