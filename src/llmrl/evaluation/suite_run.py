"""One run in a suite: who plays, which tests they can take, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.core.protocols import Policy, VecEnv
    from llmrl.evaluation.saved_runs import SavedRun
    from llmrl.evaluation.settings import EvaluationSettings, Teller
    from llmrl.experiment.parts import Parts
    from llmrl.loops.suite import Suite, SuiteTest

Config = Mapping[str, Any]


def play_suite(
    saved: SavedRun,
    names: Sequence[str],
    settings: EvaluationSettings,
    name: str,
    content: Mapping[str, Any],
    out: Path,
    tell: Teller,
) -> dict[str, Any]:
    """Play a suite with one run's agent, and write what was found.

    Args:
        saved: the run.
        names: who plays: student, random, bot.
        settings: what is asked.
        name, content: of the suite.
        out: folder of what is written.
        tell: is told what goes on.

    Returns:
        What was written, with `out`.

    Raises:
        LlmrlError: the suite makes no sense, or is for other runs.
    """
    from llmrl.analysis.suite import summarized, write_suite
    from llmrl.core.errors import BudgetExhausted
    from llmrl.evaluation.evaluation_budget import announced, askers, refused, with_budget
    from llmrl.evaluation.players import without_teacher
    from llmrl.evaluation.saved_runs import alone
    from llmrl.experiment.models import build_llm
    from llmrl.experiment.parts import build_parts
    from llmrl.loops.suite import suite_of

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
        if asking := askers(names, config, llm):
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


def check_played(results: Mapping[str, Any]) -> None:
    """See that somebody played something.

    Raises:
        ConfigError: nobody could take any test; with the first reason.
    """
    from llmrl.core.errors import ConfigError

    if not any(player for test in results["tests"] for player in test["players"].values()):
        reasons = next(iter(results["tests"]))["refused"]
        raise ConfigError(f"suite={results['suite']}: no test could be played; {next(iter(reasons.values()))}")


def _play_test(
    test: SuiteTest,
    suite: Suite,
    parts: Parts,
    config: Config,
    settings: EvaluationSettings,
    names: Sequence[str],
    out: Path,
) -> dict[str, Any]:
    """What each player did in each kind, or why it could not: the error that says so. Kinds that cannot be done with
    the actions there are, are in `lacking` with the reason."""
    from llmrl.core.errors import ConfigError
    from llmrl.core.seeding import Seeds
    from llmrl.experiment.parts import build_env
    from llmrl.loops.suite import play_kind

    own = parts.env.spec
    played: dict[str, dict[str, Any]] = {name: {} for name in names}
    refused: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for kind, node in test.environments(own.action_names):
        seeds = Seeds(settings.seed).child("suite").child(test.name).child(kind)
        try:
            env = build_env(node, {"seeds": seeds.child("env")}, config["trusted_modules"])
        except ConfigError as error:
            refused |= {name: str(error) for name in names}
            break
        try:
            try:
                test.check_possible(kind, own, env.spec)
            except ConfigError as error:
                lacking[kind] = str(error)
                continue
            for name in [name for name in names if name not in refused]:
                folder = out / "steps" / test.name / kind / name if settings.trajectories else None
                try:
                    policy = _player(name, parts, env, test.reads)
                    greedy = settings.mode == "deterministic"
                    # All players have the same games.
                    games = seeds.child("episodes")
                    played[name][kind] = play_kind(env, policy, parts.device, suite, games, greedy, folder)
                except ConfigError as error:
                    refused[name] = str(error)
        finally:
            env.close()
    for name in names:
        if lacking and not played[name] and name not in refused:
            refused[name] = "; ".join(lacking.values())
    about = {"name": test.name, "title": test.title, "what": test.what, "env": test.environment(own.action_names)}
    players = {name: None if name in refused else played[name] for name in names}
    return {**about, "players": players, "refused": refused, "lacking": lacking}


def _player(name: str, parts: Parts, env: VecEnv, reads: Sequence[str]) -> Policy:
    from llmrl.loops.suite import fit

    if name == "random":
        from llmrl.agents.random_agent import RandomPolicy

        return RandomPolicy(env.spec)
    if name == "bot":
        from llmrl.agents.bot_agent import BotPolicy

        return BotPolicy(env.spec)
    [agent] = parts.agents
    fit(agent, parts.env.spec, env.spec, reads)
    return agent.policy


def _so_far(done: int, of: int, test: Mapping[str, Any]) -> str:
    """How far a long evaluation is."""
    from llmrl.core.printable import printable

    told = [
        f"{name} {test['refused'][name]}" if found is None else f"{name} {found['success']:.2f}"
        for name, found in test["players"].items()
    ]
    return printable(f"{done} of {of}, {test['title']}: {', '.join(told)}", lines=False)
