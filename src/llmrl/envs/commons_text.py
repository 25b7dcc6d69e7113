"""Options and texts of a common-pool resource game: a fishery, a pasture or a polluted river.

The three stories are rephrased from GovSim (Piatti et al. 2024, arXiv 2404.16698). Their rules are the same.
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
        ConfigError: options contradict each other.
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
                f"{capacity // self.growth}; otherwise a full stock would collapse even after a sustainable harvest"
            )
        if self.universalization and "text" not in self.observe:
            raise ConfigError("env.universalization=true adds a sentence to texts; add text to env.observe")
        if self.show_mechanism and not self.mechanism:
            raise ConfigError("env.show_mechanism=true requires a mechanism; set env.mechanism=true")


@dataclass(frozen=True)
class Scenario:
    """Words that describe the game in a story.

    Attributes:
        player_plural: noun for the players, plural.
        opening_sentence: first sentence, with the placeholders `{n}` (players) and `{capacity}` (maximum stock).
        stock_units: noun for units of the stock, plural.
        choice_phrase: clause about the decision of each player in a month.
        cost_sentence: sentence about the effect of a harvested unit on the stock.
        action_phrase: effect of an action, with the placeholder `{amount}`.
        harvest_units: noun for units of the harvest, plural.
        remainder_phrase: noun phrase for the stock after the harvest.
        reward_unit: noun phrase for a unit that the player harvests.
        warning_sentence: sentence of `env.universalization`, with the placeholder `{share}`.
    """

    player_plural: str
    opening_sentence: str
    stock_units: str
    choice_phrase: str
    cost_sentence: str
    action_phrase: str
    harvest_units: str
    remainder_phrase: str
    reward_unit: str
    warning_sentence: str


SCENARIOS: Mapping[ScenarioName, Scenario] = {
    "fishery": Scenario(
        player_plural="fishermen",
        opening_sentence="{n} fishermen share a lake, where at most {capacity} tons of fish can live.",
        stock_units="tons of fish",
        choice_phrase="how many tons of fish to catch",
        cost_sentence="Each ton that is caught is gone from the lake",
        action_phrase="try to catch {amount} tons of fish",
        harvest_units="tons of fish",
        remainder_phrase="what is left of the fish",
        reward_unit="ton of fish that you catch",
        warning_sentence="As things are, there will be fewer fish next month if every fisherman catches more than "
        "{share} tons.",
    ),
    "pasture": Scenario(
        player_plural="shepherds",
        opening_sentence="{n} shepherds share a pasture, where at most {capacity} hectares of grass can grow.",
        stock_units="hectares of grass",
        choice_phrase="how many flocks of sheep to let graze there",
        cost_sentence="Each flock eats 1 hectare of grass a month",
        action_phrase="try to let {amount} flocks of sheep graze",
        harvest_units="flocks of sheep",
        remainder_phrase="what is left of the grass",
        reward_unit="flock that you let graze",
        warning_sentence="As things are, there will be less grass next month if every shepherd lets more than {share} "
        "flocks graze.",
    ),
    "pollution": Scenario(
        player_plural="factory owners",
        opening_sentence="{n} factory owners share a river, which has at most {capacity} units of clean water.",
        stock_units="units of clean water",
        choice_phrase="how many pallets of widgets to make",
        cost_sentence="Each pallet pollutes 1 unit of clean water",
        action_phrase="try to make {amount} pallets of widgets",
        harvest_units="pallets of widgets",
        remainder_phrase="what is left of the clean water",
        reward_unit="pallet that you make",
        warning_sentence="As things are, there will be less clean water next month if every factory owner makes more "
        "than {share} pallets.",
    ),
}
"""Texts of each scenario. With a capacity of 100, a unit of clean water is 1 % of the river, as in GovSim."""


def describe_game(settings: CommonsSettings, tax_space: ParameterSpace | None) -> EnvDescription:
    """Return the description of the game that players read before it begins.

    Args:
        settings: options of the game.
        tax_space: space of the taxes that a planner sets; None: there are no taxes.
    """
    story, capacity = SCENARIOS[settings.scenario], settings.capacity
    growth_phrase = {2: "doubles", 3: "triples"}.get(settings.growth, f"becomes {settings.growth} times as much")
    stock, harvest = 9 * capacity // 10, 3 * capacity // 10
    next_stock = min(capacity, settings.growth * (stock - harvest))
    end_sentence = (
        f"After {settings.horizon} months the game is over."
        if settings.show_horizon
        else "The game goes on for many months."
    )
    reward_text = f"You are rewarded with 1 for each {story.reward_unit}."
    if tax_space is not None:
        sharing_sentence = "What is paid is shared equally among all players, those who paid it included."
        reward_text = mechanism_text.describe_rules(
            tax_space, f"1 for each {story.reward_unit}", sharing_sentence, settings.show_mechanism
        )
    goal = (
        f"{story.opening_sentence.format(n=settings.n_agents, capacity=capacity)} Every month all players decide at "
        f"the same time {story.choice_phrase}, and none knows what the others decide. {story.cost_sentence}. If "
        "players want more than there is, it is handed out one unit after the other, each to a player who still wants "
        f"more, drawn at random, until nothing is left. At the end of the month, {story.remainder_phrase} "
        f"{growth_phrase}, up to {capacity} units. For example, if there are {stock} and {harvest} are taken, there "
        f"will be {next_stock} next month. If fewer than {settings.collapse_threshold} are left before they grow, the "
        f"stock has collapsed and the game is over. {end_sentence} {reward_text} Only your own reward counts for you, "
        "over the whole game. At the end of each month all are told what each player got."
    )
    observation_fields = [
        ("players", f"{story.player_plural} in the game, you included"),
        ("stock", f"{story.stock_units} now, before this month's decisions, 0 to {capacity}"),
        ("months_played", "months that are over"),
    ]
    if settings.show_horizon:
        observation_fields.append(("months_left", "months to be played, this one included"))
    observation_fields += [
        ("last_month", f"{story.harvest_units} that each player got last month; not told in the first month"),
        ("total_last_month", f"{story.harvest_units} that all of them got last month together"),
        ("you_wanted", f"{story.harvest_units} that you wanted last month"),
        ("you_got", f"{story.harvest_units} that you got last month"),
        ("you_got_so_far", f"{story.harvest_units} that you got since the game began"),
    ]
    if settings.universalization:
        observation_fields.append(("if_everybody", "what happens if everybody takes more than a certain amount"))
    mechanism_report: dict[str, Any] = {}
    if tax_space is not None:
        observation_fields += mechanism_text.describe_report_fields(tax_space, {}, settings.show_mechanism)
        mechanism_report = mechanism_text.build_example_report(tax_space, {}, settings.show_mechanism)
    actions = tuple((f"take_{n}", story.action_phrase.format(amount=n)) for n in range(settings.max_catch + 1))
    example_state: dict[str, Any] = {"stock": capacity, "month": 1, "sustainable_share": capacity // 10, "request": 10}
    example = describe_observation(
        settings, mechanism_report, player=0, harvests=[10] * settings.n_agents, total_harvest=10, **example_state
    )
    return EnvDescription(goal, tuple(observation_fields), actions, example=example, amount=story.choice_phrase)


def describe_observation(
    settings: CommonsSettings,
    mechanism_report: Mapping[str, Any],
    *,
    player: int,
    stock: int,
    month: int,
    sustainable_share: int,
    harvests: Sequence[int],
    request: int,
    total_harvest: int,
) -> str:
    """Return the observation of a player as a JSON object.

    Args:
        settings: options of the game.
        mechanism_report: entries about the taxes (`MechanismReport.build_entries`).
        player: index of the player.
        stock: current stock, in units.
        month: number of months played.
        sustainable_share: harvest of each player after which the stock grows back to its current size, in units.
        harvests: units that each player got last month, [n_agents].
        request: units that the player requested last month.
        total_harvest: units that the player got since the episode began.
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
            "you_got_so_far": total_harvest,
        }
    if settings.universalization and stock >= settings.collapse_threshold:
        facts["if_everybody"] = SCENARIOS[settings.scenario].warning_sentence.format(share=sustainable_share)
    return json.dumps({**facts, **mechanism_report})


def build_tax_space(max_tax: float, harvest: str) -> ParameterSpace:
    """Return the space of the two taxes on harvests; `harvest` is the plural noun for harvested units."""
    descriptions = (
        ("harvest_tax", f"paid by a player for each of its {harvest}", "{value:.3g} for each unit"),
        (
            "excess_tax",
            f"also paid for each of its {harvest} above its sustainable share: an equal part of the most that all can "
            "take without a smaller stock in the next step",
            "{value:.3g} more for each unit above the sustainable share",
        ),
    )
    sharing_phrase = "all players share what is paid equally"
    parameters = tuple(
        Parameter(name, 0.0, max_tax, "reward per unit", f"{description}; {sharing_phrase}", effect=effect)
        for name, description, effect in descriptions
    )
    return ParameterSpace("harvest taxes", parameters, sentence="Takes {effects}; all agents share it equally.")
