"""Options and texts of a common-pool resource game: a fishery, a pasture or a polluted river.

The three stories are those of GovSim (Piatti et al. 2024, arXiv 2404.16698), in other words. The game is the same.
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
            raise ConfigError("env.show_mechanism=true requires env.mechanism=true")


@dataclass(frozen=True)
class Scenario:
    """Words of a story.

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


@dataclass(frozen=True)
class PlayerView:
    """State of a game as one player observes it.

    Attributes:
        player: index of the player.
        stock: units now.
        month: months played.
        share: sustainable share of a player now, units.
        taken: units that each player got last month, [n_agents].
        wanted: units that the player wanted last month.
        total: units that the player got since the game began.
    """

    player: int
    stock: int
    month: int
    share: int
    taken: Sequence[int]
    wanted: int
    total: int


@dataclass(frozen=True)
class CommonsText:
    """Texts of a game: the description before it begins, and each observation.

    Attributes:
        settings: options of the game.
        space: the taxes that a planner sets; None: there are none.
    """

    settings: CommonsSettings
    space: ParameterSpace | None = None

    def description(self) -> EnvDescription:
        """Return the description of the game that players read before it begins."""
        settings, words, capacity = self.settings, SCENARIOS[self.settings.scenario], self.settings.capacity
        grows = {2: "doubles", 3: "triples"}.get(settings.growth, f"becomes {settings.growth} times as much")
        stock, harvest = 9 * capacity // 10, 3 * capacity // 10
        new_stock = min(capacity, settings.growth * (stock - harvest))
        end = f"After {settings.horizon} months the game is over."
        if not settings.show_horizon:
            end = "The game goes on for many months."
        goal = (
            f"{words.opening.format(n=settings.n_agents, capacity=capacity)} Every month all players decide at the "
            f"same time {words.choice}, and none knows what the others decide. {words.cost}. If players want more than "
            f"there is, it is handed out one unit after the other, each to a player who still wants more, drawn at "
            f"random, until nothing is left. At the end of the month, {words.left} {grows}, up to {capacity} "
            f"units. For example, if there are {stock} and {harvest} are taken, there will be {new_stock} next month. "
            f"If fewer than {settings.collapse_threshold} are left before they grow, the stock has collapsed and "
            f"the game is over. {end} {self._rewarded(words)} Only your own reward counts for you, over the whole "
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
        if self.space is not None:
            fields += mechanism_text.fields(self.space, {}, settings.show_mechanism)
            report = mechanism_text.example(self.space, {}, settings.show_mechanism)
        actions = tuple((f"take_{n}", words.act.format(amount=n)) for n in range(settings.max_catch + 1))
        view = PlayerView(0, capacity, 1, capacity // 10, [10] * settings.n_agents, 10, 10)
        example = self.observation(view, report)
        return EnvDescription(goal, tuple(fields), actions, example=example, amount=words.choice)

    def observation(self, view: PlayerView, report: Mapping[str, Any]) -> str:
        """Return the observation of a player as a JSON object.

        Args:
            view: the game as the player observes it.
            report: entries about the taxes (`MechanismReport.observation_entries`).
        """
        settings = self.settings
        facts: dict[str, object] = {"players": settings.n_agents, "stock": view.stock, "months_played": view.month}
        if settings.show_horizon:
            facts["months_left"] = settings.horizon - view.month
        if view.month:
            facts |= {
                "last_month": {f"player {i + 1}": amount for i, amount in enumerate(view.taken)},
                "total_last_month": sum(view.taken),
                "you_wanted": view.wanted,
                "you_got": view.taken[view.player],
                "you_got_so_far": view.total,
            }
        if settings.universalization and view.stock >= settings.collapse_threshold:
            facts["if_everybody"] = SCENARIOS[settings.scenario].warning.format(share=view.share)
        return json.dumps({**facts, **report})

    def _rewarded(self, words: Scenario) -> str:
        """Return the sentence about rewards, with the taxes if there are any."""
        if self.space is None:
            return f"You are rewarded with 1 for each {words.earned}."
        base = f"1 for each {words.earned}"
        rule = "What is paid is shared equally among all players, those who paid it included."
        return mechanism_text.rules_in_words(self.space, base, rule, self.settings.show_mechanism)


def taxes(highest: float, harvest: str) -> ParameterSpace:
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
    parameters = (
        Parameter(
            name, 0.0, highest, "reward per unit", f"{meaning}; all players share what is paid equally", effect=effect
        )
        for name, meaning, effect in descriptions
    )
    return ParameterSpace("harvest taxes", tuple(parameters), sentence="Takes {effects}; all agents share it equally.")
