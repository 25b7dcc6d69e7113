"""Texts of the tax economy: the description of the game, and each worker's observation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

from llmrl.core.spaces import EnvDescription
from llmrl.envs.tax_citizens import Citizens

_OBSERVATION = (
    ("hourly_wage", "what you earn an hour, dollars; it stays the same for the whole episode"),
    ("year", "which year it is, from 1"),
    ("step_of_year", "which part of the year you now choose your hours for, from 1; parts are equally long"),
    ("income_so_far_this_year", "what you earned in the parts of this year that are over, dollars"),
    ("last_hours", "hours a week you worked in the part before, or null"),
    ("last_year", "the year before, or null: your income, the tax_paid on it, the transfer_received, your net_income"),
    ("average_income_last_year", "mean income of all workers before taxes, dollars, or null"),
)


def spans(edges: Sequence[float]) -> list[str]:
    """Return each bracket in words, in dollars: `0 to 47,150`, ..., `191,950 or more`."""
    money = [f"{1000 * edge:,.0f}" for edge in edges]
    return [f"{low} to {high}" for low, high in pairwise(money)] + [f"{money[-1]} or more"]


def action_names(citizens: Citizens) -> tuple[str, ...]:
    """Return the names of the actions: `0_hours`, `10_hours`, ..."""
    return tuple(f"{hours:g}_hours" for hours in citizens.hours)


def game_text(citizens: Citizens, n_agents: int, years: int, shows_rates: bool) -> EnvDescription:
    """Return the description of the game that workers read before it begins."""
    steps = citizens.steps_per_year
    parts = "once a year" if steps == 1 else f"{steps} times a year, for a part of the year each time"
    income = "the net income in thousand dollars"
    if citizens.eta > 0:
        curve = "ln(c)" if citizens.eta == 1 else f"(c^{1 - citizens.eta:g} - 1) / {1 - citizens.eta:g}"
        income = f"{curve}, where c is the net income in thousand dollars (c below 1 counts as 1)"
    work = f"{citizens.psi:.4g} * (hours / 40)^{citizens.delta:g}"
    goal = (
        f"You are one of {n_agents} workers. You choose how many hours a week to work, {parts}, for {years} years of "
        "52 weeks. You earn your hourly wage for each hour. At the end of a year everybody's income of the year is "
        "taxed by brackets: of each dollar that falls into a bracket, that bracket's rate is taken. "
        f"The brackets are, in dollars a year: {'; '.join(spans(citizens.edges))}. All taxes are then shared out "
        "equally: every worker receives the same transfer. Your net income is your income less your tax plus the "
        f"transfer. Your reward of a year is {income}, less {work} for a whole year of so many hours a week. "
        "Only your own rewards count for you, over all years."
    )
    observation_fields = list(_OBSERVATION)
    if shows_rates:
        observation_fields.append(("tax_rates", "the rate of each bracket, from 0 to 1, the lowest bracket first"))
    effects = (f"work {hours:g} hours a week until you choose again" for hours in citizens.hours)
    last = {"income": 52000, "tax_paid": 6000, "transfer_received": 9000, "net_income": 55000, "utility": 40.1}
    worker_facts = {"hourly_wage": 25.0, "year": 2, "step_of_year": 1, "income_so_far_this_year": 0, "last_hours": 40}
    example = {
        **worker_facts,
        "last_year": last,
        "average_income_last_year": 60000,
        "tax_rates": [0.1] * len(citizens.edges),
    }
    return EnvDescription(
        goal,
        tuple(observation_fields),
        tuple(zip(action_names(citizens), effects, strict=True)),
        example=json.dumps(example),
    )


def observation_text(
    citizens: Citizens,
    wage: float,
    time: int,
    earned: float,
    last_hours: float,
    last_year: Sequence[float],
    average: float,
    rates: Sequence[float] | None,
) -> str:
    """Return the observation of one worker as a JSON object; money in whole dollars.

    Args:
        citizens: rules of the game.
        wage: dollars an hour.
        time: steps of the episode that are over.
        earned: income of this year so far, thousand dollars.
        last_hours: of the step before, a week.
        last_year: income, tax, transfer and net income of the year before, thousand dollars, and its utility.
        average: mean income of all workers in that year, thousand dollars.
        rates: marginal tax rates, or None where they are not shown.
    """
    year, part = divmod(time, citizens.steps_per_year)
    names = ("income", "tax_paid", "transfer_received", "net_income")
    amounts = {name: _dollars(x) for name, x in zip(names, last_year, strict=False)}
    facts: dict[str, object] = {
        "hourly_wage": round(wage, 2),
        "year": year + 1,
        "step_of_year": part + 1,
        "income_so_far_this_year": _dollars(earned),
        "last_hours": last_hours if time else None,
        "last_year": {**amounts, "utility": round(last_year[4], 3)} if year else None,
        "average_income_last_year": _dollars(average) if year else None,
    }
    if rates is not None:
        facts["tax_rates"] = [round(rate, 4) for rate in rates]
    return json.dumps(facts)


def _dollars(thousands: float) -> int:
    return round(1000 * thousands)
