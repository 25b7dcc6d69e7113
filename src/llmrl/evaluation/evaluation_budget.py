"""What an evaluation asks of a chat model: who asks, for how many episodes, and what is said of it before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core.errors import BudgetExhausted
from llmrl.core.protocols import Estimating
from llmrl.core.records import CallEstimate
from llmrl.experiment.parts import Parts
from llmrl.llms.client import ChatClient

Config = Mapping[str, Any]

_GROUPS = {"student": "agent", "teacher": "teacher"}
"""Players that may ask -> the group of the config they are built from."""


def askers(names: Sequence[str], config: Config, llm: object) -> list[str]:
    """Those of the players `names` that ask the chat model `llm` as they play: an agent that a chat model is, and a
    teacher whose model is not known to be free."""
    if not isinstance(llm, ChatClient):
        return []
    builder = Builder(trusted=config["trusted_modules"])
    asking = [name for name in names if name in _GROUPS and builder.needs(config[_GROUPS[name]], "llm", _GROUPS[name])]
    costs = llm.provider.cost(10**6, 10**6) != 0
    return [name for name in asking if name == "student" or costs]


def with_budget(config: Config, calls: int | None) -> Config:
    """The config as evaluations ask: with a budget of their own, so many replies (None: that of the run), and where
    invalid replies are only counted, as an evaluation has nothing to save."""
    if "llm" not in config:  # nobody asks a model
        return config
    llm = {**config["llm"], "max_invalid": None}
    if calls is not None:
        llm["budget"] = {**config["llm"]["budget"], "calls": calls, "tokens": None, "usd": None}
    return {**config, "llm": llm}


def announced(
    names: Sequence[str], parts: Parts, episodes: int, rounds: int, filmed: int | None, films: int = 1
) -> list[tuple[str, str]]:
    """Rows (what, value): what the players `names` will ask.

    Args:
        names: from `askers`.
        parts: of the evaluation.
        episodes: that each of them plays in each of `rounds` modes, or under as many mechanisms.
        filmed: steps of each of the `films` that are made besides, if one of them is in it, else 0; None: not known.
    """
    from llmrl.experiment.plan import calls

    assert isinstance(parts.llm, ChatClient)
    film = "" if filmed == 0 else f", and {films} that {'is' if films == 1 else 'are'} filmed"
    rows = [("model", parts.llm.label), ("episodes", f"{len(names) * rounds * episodes:,}{film}")]
    horizon, [agent] = parts.env.spec.horizon, parts.agents
    if names != ["student"] or not isinstance(agent, Estimating) or horizon is None or filmed is None:
        return [*rows, ("LLM calls", "unknown, about as many as there are decisions; calls (--calls) limits them")]
    played = agent.estimate(horizon, episodes)
    estimates = [played] * rounds + ([agent.estimate(filmed, films)] if filmed else [])
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
    )
