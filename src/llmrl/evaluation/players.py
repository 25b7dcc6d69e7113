"""Players of an evaluation (student, teacher, oracle, bot, random), and their calls to a chat model."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.config.builder import Builder
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.option_files import option
from llmrl.core.protocols import EstimatesCalls, Policy
from llmrl.core.records import CallEstimate
from llmrl.core.seeding import Seeds
from llmrl.core.services import TeacherServices
from llmrl.experiment.parts import Config, Parts
from llmrl.llms.client import ChatClient

PLAYERS = ("student", "teacher", "oracle", "bot", "random")
_GROUPS = {"student": "agent", "teacher": "teacher"}
"""Players that may call a chat model -> the config group that they are built from."""


def build_players(names: Sequence[str], config: Config, parts: Parts) -> dict[str, Policy]:
    """Return the policies of some players by name, in the order of the names.

    Args:
        names: names from `PLAYERS`.
        config: config of the run, with its teacher. An oracle uses the `domain` of the teacher if it has one.
        parts: parts of the run.

    Raises:
        ConfigError: there is no such player, the run has no teacher that can play, or the environment no oracle.
    """
    players: dict[str, Policy] = {}
    for name in names:
        if name not in PLAYERS:
            raise ConfigError(f"policy={name} is unknown; use {', '.join(PLAYERS)}, several with commas")
        if name == "student":
            players[name] = parts.agents[0].policy
        elif name == "random":
            from llmrl.agents.random_agent import RandomPolicy

            players[name] = RandomPolicy(parts.env.spec)
        elif name == "bot":
            from llmrl.agents.bot_agent import BotPolicy

            players[name] = BotPolicy(parts.env.spec)
        elif name == "teacher":
            if parts.teacher is None or parts.teacher.policy is None:
                raise ConfigError("policy=teacher: this run has no teacher that can play; remove it")
            players[name] = parts.teacher.policy
        else:
            services = TeacherServices(parts.env.spec, Seeds(config["seed"]).child("oracle"))
            domain_options = {key: config["teacher"][key] for key in ("domain", "parity") if key in config["teacher"]}
            node = option("teacher", "oracle") | (domain_options if domain_options.get("domain") is not None else {})
            oracle = Builder(services, config["trusted_modules"]).build(node, "teacher")
            players[name] = oracle.policy
    return players


def llm_players(names: Sequence[str], config: Config, llm: object) -> list[str]:
    """Return the players among `names` whose actions need paid or possibly paid calls to the chat model `llm`.

    These are an agent that is a chat model, and a teacher whose model is not known to be free.
    """
    if not isinstance(llm, ChatClient):
        return []
    builder = Builder(trusted=config["trusted_modules"])
    asking = [name for name in names if name in _GROUPS and builder.needs(config[_GROUPS[name]], "llm", _GROUPS[name])]
    is_paid = llm.provider.cost(10**6, 10**6) != 0
    return [name for name in asking if name == "student" or is_paid]


def describe_calls(
    names: Sequence[str], parts: Parts, episodes: int, rounds: int, filmed: int | None, videos: int = 1
) -> list[tuple[str, str]]:
    """Return the calls to a chat model that some players will make, as pairs of a name and a text.

    Args:
        names: names of the players (`llm_players`).
        parts: parts of the evaluation.
        episodes: number of episodes of each player in each round.
        rounds: number of modes or mechanisms in which each player plays.
        filmed: steps of each video in which one of the players plays; 0: none; None: unknown.
        videos: number of videos.
    """
    from llmrl.experiment.plan import calls

    assert isinstance(parts.llm, ChatClient)
    film = "" if filmed == 0 else f", and {videos} that {'is' if videos == 1 else 'are'} filmed"
    rows = [("model", parts.llm.label), ("episodes", f"{len(names) * rounds * episodes:,}{film}")]
    horizon, [agent] = parts.env.spec.horizon, parts.agents
    if names != ["student"] or not isinstance(agent, EstimatesCalls) or horizon is None or filmed is None:
        return [*rows, ("LLM calls", "unknown, about one for each decision; calls (--calls) limits them")]
    play_estimate = agent.estimate(horizon, episodes)
    estimates = [play_estimate] * rounds + ([agent.estimate(filmed, videos)] if filmed else [])
    return [*rows, *calls(CallEstimate.total(estimates), parts.llm)]


def budget_error(error: BudgetExhausted) -> BudgetExhausted:
    """Return the error of an evaluation whose budget is used up."""
    return BudgetExhausted(
        error.reached,
        "All evaluations of a run share the budget of the run, and this one has saved no results. Paid replies are in "
        "the cache; play fewer episodes, or allow more replies with calls (--calls)",
    )
