"""Options and texts of a common-pool resource game: a fishery, a pasture or a polluted river.

The three stories are those of GovSim (Piatti et al. 2024, arXiv 2404.16698), rephrased. Their games are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.spaces import EnvDescription, Parameter, ParameterSpace
from llmrl.envs import mechanism_text

ScenarioName = Literal["fishery", "pasture", "pollution"]
ChannelName = Literal["vector", "text"]


@dataclass(frozen=True)
class CommonsSettings:
    """Options of `Commons`; meanings, units and ranges are in `conf/env/fishery.yaml`.

    Raises:
        ConfigError: options that contradict each other.
    """

    scenario: ScenarioName
    n_envs: PositiveInt
    n_agents: PositiveInt
    capacity: PositiveInt
    growth: Annotated[int, Ge(2)]
    collapse_threshold: PositiveInt
    horizon: PositiveInt
    max_catch: PositiveInt
    observe: Annotated[Sequence[ChannelName], MinLen(1)]
    show_horizon: bool
    universalization: bool
    mechanism: bool
    max_tax: PositiveFloat
    show_mechanism: bool

    def __post_init__(self) -> None:
        capacity = self.capacity
        if self.max_catch > capacity:
            raise ConfigError(f"env.max_catch={self.max_catch} must be at most env.capacity={capacity}")
        if self.growth * self.collapse_threshold > capacity:
            raise ConfigError(
                f"env.collapse_threshold={self.collapse_threshold} must be at most capacity / growth = "
                f"{capacity // self.growth}; otherwise even a stock of {capacity} that nobody reduces could collapse"
            )
        if self.universalization and "text" not in self.observe:
            raise ConfigError("env.universalization=true adds a sentence to texts; add text to env.observe")
        if self.show_mechanism and not self.mechanism:
            raise ConfigError("env.show_mechanism=true requires a mechanism; set env.mechanism=true")


@dataclass(frozen=True)
class Scenario:
    """Words that describe the game in a story.

    Attributes:
        players: what the players are called, plural.
        opening: first sentence, with `{n}` players and `{capacity}` units at most.
        units: units of the stock, plural.
        choice: the decision of each player in a month.
        cost: sentence about the effect of a unit of the harvest on the stock.
        act: effect of an action, with `{amount}`.
        harvest: units of the harvest, plural.
        left: words for the rest of the stock.
        earned: a unit of the player's own harvest.
        warning: universalization, with `{share}`.
    """

    players: str
    opening: str
    units: str
    choice: str
    cost: str
    act: str
    harvest: str
    left: str
    earned: str
    warning: str


SCENARIOS: Mapping[ScenarioName, Scenario] = {
    "fishery": Scenario(
        players="fishermen",
        opening="{n} fishermen share a lake, where at most {capacity} tons of fish can live.",
        units="tons of fish",
        choice="how many tons of fish to catch",
        cost="Each ton that is caught is gone from the lake",
        act="try to catch {amount} tons of fish",
        harvest="tons of fish",
        left="what is left of the fish",
        earned="ton of fish that you catch",
        warning="As things are, there will be fewer fish next month if every fisherman catches more than {share} tons.",
    ),
    "pasture": Scenario(
        players="shepherds",
        opening="{n} shepherds share a pasture, where at most {capacity} hectares of grass can grow.",
        units="hectares of grass",
        choice="how many flocks of sheep to let graze there",
        cost="Each flock eats 1 hectare of grass a month",
        act="try to let {amount} flocks of sheep graze",
        harvest="flocks of sheep",
        left="what is left of the grass",
        earned="flock that you let graze",
        warning="As things are, there will be less grass next month if every shepherd lets more than {share} flocks "
        "graze.",
    ),
    "pollution": Scenario(
        players="factory owners",
        opening="{n} factory owners share a river, which has at most {capacity} units of clean water.",
        units="units of clean water",
        choice="how many pallets of widgets to make",
        cost="Each pallet pollutes 1 unit of clean water",
        act="try to make {amount} pallets of widgets",
        harvest="pallets of widgets",
        left="what is left of the clean water",
        earned="pallet that you make",
        warning="As things are, there will be less clean water next month if every factory owner makes more than "
        "{share} pallets.",
    ),
}
"""With a capacity of 100, a unit of clean water is 1 % of the river, as published."""


def game_text(settings: CommonsSettings, space: ParameterSpace | None) -> EnvDescription:
    """Return the description of the game that players read before it begins.

    Args:
        settings: options of the game.
        space: the taxes that a planner sets; None: there are none.
    """
    words, capacity = SCENARIOS[settings.scenario], settings.capacity
    grows = {2: "doubles", 3: "triples"}.get(settings.growth, f"becomes {settings.growth} times as much")
    stock, harvest = 9 * capacity // 10, 3 * capacity // 10
    new_stock = min(capacity, settings.growth * (stock - harvest))
    end = "The game goes on for many months."
    if settings.show_horizon:
        end = f"After {settings.horizon} months the game is over."
    rewards = f"You are rewarded with 1 for each {words.earned}."
    if space is not None:
        rule = "What is paid is shared equally among all players, those who paid it included."
        rewards = mechanism_text.rules_in_words(space, f"1 for each {words.earned}", rule, settings.show_mechanism)
    goal = (
        f"{words.opening.format(n=settings.n_agents, capacity=capacity)} Every month all players decide at the "
        f"same time {words.choice}, and none knows what the others decide. {words.cost}. If players want more than "
        f"there is, it is handed out one unit after the other, each to a player who still wants more, drawn at "
        f"random, until nothing is left. At the end of the month, {words.left} {grows}, up to {capacity} "
        f"units. For example, if there are {stock} and {harvest} are taken, there will be {new_stock} next month. "
        f"If fewer than {settings.collapse_threshold} are left before they grow, the stock has collapsed and "
        f"the game is over. {end} {rewards} Only your own reward counts for you, over the whole "
        "game. At the end of each month all are told what each player got."
    )
    fields = [
        ("players", f"{words.players} in the game, you included"),
        ("stock", f"{words.units} now, before this month's decisions, 0 to {capacity}"),
        ("months_played", "months that are over"),
    ]
    if settings.show_horizon:
        fields.append(("months_left", "months to be played, this one included"))
    fields += [
        ("last_month", f"{words.harvest} that each player got last month; not told in the first month"),
        ("total_last_month", f"{words.harvest} that all of them got last month together"),
        ("you_wanted", f"{words.harvest} that you wanted last month"),
        ("you_got", f"{words.harvest} that you got last month"),
        ("you_got_so_far", f"{words.harvest} that you got since the game began"),
    ]
    if settings.universalization:
        fields.append(("if_everybody", "what happens if everybody takes more than a certain amount"))
    report: dict[str, Any] = {}
    if space is not None:
        fields += mechanism_text.fields(space, {}, settings.show_mechanism)
        report = mechanism_text.example(space, {}, settings.show_mechanism)
    actions = tuple((f"take_{n}", words.act.format(amount=n)) for n in range(settings.max_catch + 1))
    state: dict[str, Any] = {"stock": capacity, "month": 1, "share": capacity // 10, "request": 10, "total": 10}
    example = observation_text(settings, report, player=0, harvests=[10] * settings.n_agents, **state)
    return EnvDescription(goal, tuple(fields), actions, example=example, amount=words.choice)


def observation_text(
    settings: CommonsSettings,
    mechanism_report: Mapping[str, Any],
    *,
    player: int,
    stock: int,
    month: int,
    share: int,
    harvests: Sequence[int],
    request: int,
    total: int,
) -> str:
    """Return the observation of a player as a JSON object.

    Args:
        settings: options of the game.
        mechanism_report: entries about the taxes (`MechanismReport.observation_entries`).
        player: index of the player.
        stock: units now.
        month: months played.
        share: sustainable share of a player now, units.
        harvests: units that each player got last month, [n_agents].
        request: units that the player wanted last month.
        total: units that the player got since the game began.
    """
    facts: dict[str, object] = {"players": settings.n_agents, "stock": stock, "months_played": month}
    if settings.show_horizon:
        facts["months_left"] = settings.horizon - month
    if month:
        facts |= {
            "last_month": {f"player {i + 1}": amount for i, amount in enumerate(harvests)},
            "total_last_month": sum(harvests),
            "you_wanted": request,
            "you_got": harvests[player],
            "you_got_so_far": total,
        }
    if settings.universalization and stock >= settings.collapse_threshold:
        facts["if_everybody"] = SCENARIOS[settings.scenario].warning.format(share=share)
    return json.dumps({**facts, **mechanism_report})


def tax_space(max_tax: float, harvest: str) -> ParameterSpace:
    """Return the space of the two taxes on a harvest, whose units are called `harvest`."""
    descriptions = (
        ("harvest_tax", f"paid by a player for each of its {harvest}", "{value:.3g} for each unit"),
        (
            "excess_tax",
            f"also paid for each of its {harvest} above its sustainable share: an equal part of the most that all can "
            "take without a smaller stock in the next step",
            "{value:.3g} more for each unit above the sustainable share",
        ),
    )
    shared = "all players share what is paid equally"
    parameters = tuple(
        Parameter(name, 0.0, max_tax, "reward per unit", f"{description}; {shared}", effect=effect)
        for name, description, effect in descriptions
    )
    return ParameterSpace("harvest taxes", parameters, sentence="Takes {effects}; all agents share it equally.")
