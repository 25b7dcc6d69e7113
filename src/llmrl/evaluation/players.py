"""Who plays in an evaluation: the student, its teacher, and what both are compared with; and what they ask of a chat
model."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.config.builder import Builder
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.option_files import option
from llmrl.core.protocols import EstimatesCalls, Policy
from llmrl.core.records import CallEstimate
from llmrl.core.seeding import Seeds
from llmrl.experiment.parts import Config, Parts
from llmrl.llms.client import ChatClient

PLAYERS = ("student", "teacher", "oracle", "bot", "random")
_GROUPS = {"student": "agent", "teacher": "teacher"}
"""Players that may ask -> the group of the config they are built from."""


def build_players(names: Sequence[str], config: Config, parts: Parts) -> dict[str, Policy]:
    """The policies of `names`, in their order; `config` is that of the run, with its teacher.

    The oracle speaks of the domain of the run's teacher where that was given one (`teacher.domain`).

    Raises:
        ConfigError: there is no such player, the run has no teacher that can play, or the environment no oracle.
    """
    players: dict[str, Policy] = {}
    for name in names:
        if name not in PLAYERS:
            raise ConfigError(f"policy={name}: there are {', '.join(PLAYERS)}, several with commas")
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
                raise ConfigError("policy=teacher: this run has no teacher that can play; leave it out")
            players[name] = parts.teacher.policy
        else:
            injected = {"spec": parts.env.spec, "seeds": Seeds(config["seed"]).child("oracle"), "folder": None}
            own = {key: config["teacher"][key] for key in ("domain", "parity") if key in config["teacher"]}
            node = option("teacher", "oracle") | (own if own.get("domain") is not None else {})
            oracle = Builder(injected, config["trusted_modules"]).build(node, "teacher")
            players[name] = oracle.policy
    return players


def llm_players(names: Sequence[str], config: Config, llm: object) -> list[str]:
    """Those of the players `names` that ask the chat model `llm` as they play: an agent that a chat model is, and a
    teacher whose model is not known to be free."""
    if not isinstance(llm, ChatClient):
        return []
    builder = Builder(trusted=config["trusted_modules"])
    asking = [name for name in names if name in _GROUPS and builder.needs(config[_GROUPS[name]], "llm", _GROUPS[name])]
    costs = llm.provider.cost(10**6, 10**6) != 0
    return [name for name in asking if name == "student" or costs]


def announced(
    names: Sequence[str], parts: Parts, episodes: int, rounds: int, filmed: int | None, videos: int = 1
) -> list[tuple[str, str]]:
    """Rows (what, value): what the players `names` will ask.

    Args:
        names: from `llm_players`.
        parts: of the evaluation.
        episodes: that each of them plays in each of `rounds` modes, or under as many mechanisms.
        filmed: steps of each of the `videos` that are made besides, if one of them is in it, else 0; None: not known.
    """
    from llmrl.experiment.plan import calls

    assert isinstance(parts.llm, ChatClient)
    film = "" if filmed == 0 else f", and {videos} that {'is' if videos == 1 else 'are'} filmed"
    rows = [("model", parts.llm.label), ("episodes", f"{len(names) * rounds * episodes:,}{film}")]
    horizon, [agent] = parts.env.spec.horizon, parts.agents
    if names != ["student"] or not isinstance(agent, EstimatesCalls) or horizon is None or filmed is None:
        return [*rows, ("LLM calls", "unknown, about as many as there are decisions; calls (--calls) limits them")]
    played = agent.estimate(horizon, episodes)
    estimates = [played] * rounds + ([agent.estimate(filmed, videos)] if filmed else [])
    return [*rows, *calls(_sum(estimates), parts.llm)]


def refused(error: BudgetExhausted) -> BudgetExhausted:
    """The error of an evaluation whose budget is used up."""
    return BudgetExhausted(
        error.reached,
        "Evaluations of a run may together spend what the run itself may, and this one has saved no results. Replies "
        "that were paid for are in the cache: play fewer episodes, or allow more replies with calls (--calls)",
    )


def _sum(estimates: Sequence[CallEstimate]) -> CallEstimate:
    return CallEstimate(
        sum(each.calls for each in estimates),
        sum(each.most_calls for each in estimates),
        sum(each.prompt_tokens for each in estimates),
        sum(each.completion_tokens for each in estimates),
        sum(each.quoted for each in estimates),
        estimates[0].shares,
    )
