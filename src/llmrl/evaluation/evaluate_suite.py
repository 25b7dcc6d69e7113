"""Evaluate the agents of runs in every environment of a suite (docs/generalisation.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.agents.bot_agent import BotPolicy
from llmrl.agents.random_agent import RandomPolicy
from llmrl.analysis.statistics import proportion
from llmrl.analysis.suite_groups import STUDENT, experiments, together
from llmrl.analysis.suite_results import summarized, write_suite
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.printable import printable
from llmrl.core.protocols import Agent, Policy, VecEnv
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.evaluation.evaluate_environment import EpisodeSettings, evaluate_environment
from llmrl.evaluation.players import announced, llm_players, refused
from llmrl.evaluation.saved_runs import SavedRun, alone, open_saved, with_budget, without_teacher
from llmrl.evaluation.settings import EvaluationSettings, Reporter
from llmrl.evaluation.suite import Suite, SuiteTest, load_suite, suite_of
from llmrl.experiment.build_env import build_env
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import Config, Parts, build_parts
from llmrl.run.files import inside, refuse_links

PLAYERS = (STUDENT, "random", "bot")


def evaluate_suite(
    runs: Sequence[Path], suite: str, settings: EvaluationSettings, tell: Reporter, changes: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Play a suite with one run or several, and write what was found.

    Args:
        runs: folders of the runs.
        suite: its name, or a `.yaml` file.
        settings: what is asked; several mechanisms, a context, both modes and videos are for other evaluations.
        tell: is told what goes on.
        changes: `key=value` for keys of the suite.

    Returns:
        What was written: of each run, and of all together where there are several, with `out`, its folder.

    Raises:
        LlmrlError: a folder is no run, the suite makes no sense, is for other runs, or none of its tests can be played.
    """
    name, content = load_suite(suite, changes, settings.episodes)
    players = _players(settings, len(runs))
    saved = [open_saved(run, settings.trusted) for run in runs]
    groups = experiments(runs, [each.config for each in saved])
    found: list[dict[str, Any]] = []
    for i, (run, each) in enumerate(zip(runs, saved, strict=True)):
        own = settings
        if len(runs) > 1:
            tell(f"Run {i + 1} of {len(runs)}: {run}")
            own = replace(settings, out=settings.out / str(i) if settings.out else None)
        place = inside(run, "evaluation", f"suite_{name}") if own.out is None else own.out / f"suite_{name}"
        if own.out is None:
            refuse_links(place)
        # Who has no runs plays once.
        found.append(_play_suite(each, [STUDENT] if found else players, own, name, content, place, tell))
    if len(found) > 1:
        joined = together(found, groups)
        above = Path(os.path.commonpath([run.absolute().parent for run in runs]))
        folder = (settings.out or above) / f"suite_{name}"
        write_suite(joined, folder)
        found.append({**joined, "out": str(folder)})
    _check_played(found[-1])
    return found


def _players(settings: EvaluationSettings, runs: int) -> list[str]:
    """Who plays, by name.

    Raises:
        ConfigError: something is asked that suites have not.
    """
    given = [word for word, given in (("video", settings.video), ("context", settings.context is not None)) if given]
    if given or settings.mode == "both":
        raise ConfigError(f"{given[0] if given else 'mode=both'} cannot be used with a suite")
    players = list(dict.fromkeys(settings.policies))
    if unknown := [each for each in players if each not in PLAYERS]:
        raise ConfigError(f"policy={unknown[0]}: a suite is played by {', '.join(PLAYERS)}, several with commas")
    if runs > 1 and STUDENT not in players:
        raise ConfigError(f"policy={','.join(players)}: several runs are given for their agents, which are the student")
    return players


def _check_played(results: Mapping[str, Any]) -> None:
    """See that somebody played something.

    Raises:
        ConfigError: nobody could take any test; with the first reason.
    """
    if not any(player for test in results["tests"] for player in test["players"].values()):
        reasons = next(iter(results["tests"]))["refused"]
        raise ConfigError(f"suite={results['suite']}: no test could be played; {next(iter(reasons.values()))}")


def _play_suite(
    saved: SavedRun,
    names: Sequence[str],
    settings: EvaluationSettings,
    name: str,
    content: Mapping[str, Any],
    out: Path,
    tell: Reporter,
) -> dict[str, Any]:
    """Play a suite with one run's agent and the other players `names`; what was written into `out`, and `out`.

    Raises:
        LlmrlError: the suite makes no sense, or is for other runs.
    """
    config = without_teacher(saved.config)
    suite = suite_of(name, content, config["env"])
    if content.get("n_envs") is not None:
        config = {**config, "env": {**config["env"], "n_envs": content["n_envs"]}}
    out.mkdir(parents=True, exist_ok=True)
    llm = build_llm(with_budget(alone(config), settings.calls), folder=out)
    parts = build_parts(config, llm, render=False, play_only=True)
    results: dict[str, Any] = {
        "suite": name,
        "runs": [str(saved.folder)],
        "checkpoint": saved.iteration,
        "seed": settings.seed,
        "mode": settings.mode,
        "episodes": suite.episodes,
        "intervals": "95%, Wilson, of one agent's episodes; of the mean over kinds, Zou and Donner",
        "llm": None if llm is None else llm.label,
        "players": list(names),
        "tests": [],
    }
    try:
        [agent] = parts.agents
        agent.load_state_dict(saved.state["agents"][0])
        if asking := llm_players(names, config, llm):
            wanted = suite.episodes * sum(max(len(test.kinds), 1) for test in suite.tests)
            tell("What is asked, at most", announced(asking, parts, wanted, 1, 0))
        for i, test in enumerate(suite.tests):
            results["tests"].append(summarized(_play_test(test, suite, parts, config, settings, names, out)))
            tell(_so_far(i + 1, len(suite.tests), results["tests"][-1]))
            write_suite(results, out, figure=False)
    except BudgetExhausted as error:
        raise refused(error) from error
    finally:
        parts.close()
    write_suite(results, out)
    return {**results, "out": str(out)}


def _play_test(
    test: SuiteTest,
    suite: Suite,
    parts: Parts,
    config: Config,
    settings: EvaluationSettings,
    names: Sequence[str],
    out: Path,
) -> dict[str, Any]:
    """What each player did in each environment of a test, or why it could not: the error that says so. Kinds of task
    that cannot be done with the actions there are, are in `lacking` with the reason."""
    own = parts.env.spec
    played: dict[str, dict[str, Any]] = {name: {} for name in names}
    failed: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for kind, node in test.environments(own.action_names):
        seeds = Seeds(settings.seed).child("suite").child(test.name).child(kind)
        try:
            env = build_env(node, {"seeds": seeds.child("env")}, config["trusted_modules"])
        except ConfigError as error:
            failed |= {name: str(error) for name in names}
            break
        # All players have the same games.
        how = EpisodeSettings(suite.episodes, seeds.child("episodes"), settings.mode == "deterministic", exactly=True)
        try:
            try:
                test.check_possible(kind, own, env.spec)
            except ConfigError as error:
                lacking[kind] = str(error)
                continue
            for name in [name for name in names if name not in failed]:
                folder = out / "steps" / test.name / kind / name if settings.trajectories else None
                try:
                    policy = _policy(name, parts, env, test.reads)
                    suite.check_metric(env.spec)
                    episodes = evaluate_environment(env, policy, parts.device, how, folder)
                except ConfigError as error:
                    failed[name] = str(error)
                else:
                    played[name][kind] = _measured(episodes, suite.metric)
        finally:
            env.close()
    for name in names:
        if lacking and not played[name] and name not in failed:
            failed[name] = "; ".join(lacking.values())
    about = {"name": test.name, "title": test.title, "what": test.what, "env": test.environment(own.action_names)}
    players = {name: None if name in failed else played[name] for name in names}
    return {**about, "players": players, "refused": failed, "lacking": lacking}


def _policy(name: str, parts: Parts, env: VecEnv, reads: Sequence[str]) -> Policy:
    """The policy of a player in the environment of a test that changes the channels `reads`.

    Raises:
        ConfigError: it cannot play there.
    """
    if name == "random":
        return RandomPolicy(env.spec)
    if name == "bot":
        return BotPolicy(env.spec)
    [agent] = parts.agents
    _fit(agent, parts.env.spec, env.spec, reads)
    return agent.policy


def _fit(agent: Agent, own: EnvSpec, spec: EnvSpec, reads: Sequence[str]) -> None:
    """Let an agent that was built for `own` play in `spec`.

    Args:
        agent: who is to play.
        own, spec: of the environment it was built for, and of the test's.
        reads: the channels that the test changes; empty: it is a test of everybody.

    Raises:
        ConfigError: it cannot: it has too few actions, or reads what looks otherwise there. Or it would see nothing of
            what is tested, and its number would be one of another test.
    """
    if reads and not set(reads) & set(agent.policy.channels):
        raise ConfigError(
            f"the test changes nothing for this agent: it reads {', '.join(agent.policy.channels)}, not "
            f"{' or '.join(reads)}"
        )
    for name in agent.policy.channels:
        if name not in spec.observation:
            raise ConfigError(f"the agent reads the channel {name!r}, which is not there")
        here, there = own.observation[name], spec.observation[name]
        if (here.shape, here.dtype, here.codes) != (there.shape, there.dtype, there.codes):
            raise ConfigError(
                f"the agent reads the channel {name!r}, which has other numbers there than in its training"
            )
    adapt = getattr(agent, "adapt", None)
    if adapt is not None:
        adapt(spec)
    elif spec.n_actions != own.n_actions:
        raise ConfigError(f"the agent chooses one of {own.n_actions} actions, and there are {spec.n_actions}")


def _measured(episodes: Sequence[Episode], metric: str) -> dict[str, Any]:
    """What episodes of one kind of task say: `episodes`, `successes`, `success` with Wilson's 95% interval `low`,
    `high`, mean `return` (of the level's own rewards) and mean `length`."""
    successes = sum(episode.summaries[metric] > 0 for episode in episodes)
    share = proportion(successes, len(episodes))
    return {
        "episodes": len(episodes),
        "successes": successes,
        "success": share.estimate,
        "low": share.low,
        "high": share.high,
        "return": float(np.mean([episode.base_returns.mean() for episode in episodes])),
        "length": float(np.mean([episode.length for episode in episodes])),
    }


def _so_far(done: int, of: int, test: Mapping[str, Any]) -> str:
    """How far a long evaluation is."""
    told = [
        f"{name} {test['refused'][name]}" if found is None else f"{name} {found['success']:.2f}"
        for name, found in test["players"].items()
    ]
    return printable(f"{done} of {of}, {test['title']}: {', '.join(told)}", lines=False)
