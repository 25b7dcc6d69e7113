"""Exact expected return of blackjack policies: of a trained chat model, of rules, and of the optimum.

    python benchmarks/blackjack_policy.py [RUN ...] [--data FILE]

The game is Gymnasium's Blackjack-v1 with `sab=True`: cards are drawn with replacement, the dealer draws up to 16, and a
natural wins unless the dealer has one, too. RUN is the folder of a run of `env=blackjack` with `agent=llm_player
agent.history=0` or `agent=llm_ppo`, whose model has learned; the model acts greedily in every state, and an invalid
reply sticks.
"""

from __future__ import annotations

import argparse
import csv
import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

CARDS = {**dict.fromkeys(range(1, 10), 1 / 13), 10: 4 / 13}
"""Probability of each card; 1 is an ace, and pictures count 10."""
MIN_DEALER = 17
Policy = Callable[[int, int, bool, bool], float]
"""Function from (sum of the player, card of the dealer, usable ace, first decision) to the probability of a hit."""


def add_card(total: int, usable: bool, card: int) -> tuple[int, bool]:
    """Return sum and usable ace after a card."""
    hard = total - 10 * usable + card
    usable = usable or card == 1
    return (hard + 10, True) if usable and hard + 10 <= 21 else (hard, False)


@functools.cache
def dealer_results(total: int, usable: bool) -> dict[int, float]:
    """Return the probabilities of the dealer's final sums; 0 is a sum above 21."""
    if total > 21:
        return {0: 1.0}
    if total >= MIN_DEALER:
        return {total: 1.0}
    results: dict[int, float] = {}
    for card, probability in CARDS.items():
        for final, share in dealer_results(*add_card(total, usable, card)).items():
            results[final] = results.get(final, 0.0) + probability * share
    return results


@functools.cache
def stick_value(total: int, up: int, natural: bool) -> float:
    """Return the expected reward of sticking; `natural`: the first two cards are an ace and a ten."""
    value = 0.0
    for card, probability in CARDS.items():
        if natural and {up, card} != {1, 10}:
            value += probability
            continue
        for final, share in dealer_results(*add_card(*add_card(0, False, up), card)).items():
            value += probability * share * ((total > final) - (total < final))
    return value


def exact_return(policy: Policy | None) -> float:
    """Return the expected return of a policy; None: the optimum."""

    @functools.cache
    def value(total: int, usable: bool, up: int, first: bool) -> float:
        if total > 21:
            return -1.0
        stick = stick_value(total, up, first and total == 21)
        hit = sum(p * value(*add_card(total, usable, card), up, False) for card, p in CARDS.items())
        if policy is None:
            return max(stick, hit)
        probability = policy(total, up, usable, first)
        return probability * hit + (1 - probability) * stick

    return sum(
        p_up * p_first * p_second * value(*add_card(*add_card(0, False, first), second), up, True)
        for up, p_up in CARDS.items()
        for first, p_first in CARDS.items()
        for second, p_second in CARDS.items()
    )


def best_threshold() -> tuple[int, float]:
    """Return the sum from which the best policy that looks only at its sum sticks, and its return."""
    returns = {limit: exact_return(lambda total, *_, limit=limit: float(total < limit)) for limit in range(4, 23)}
    best = max(returns, key=lambda limit: returns[limit])
    return best, returns[best]


@dataclass(frozen=True)
class GreedyPolicy:
    """Greedy policy of a chat model.

    Attributes:
        returns: its expected return.
        invalid: share of states with an invalid reply, for which it sticks.
    """

    returns: float
    invalid: float


State = tuple[int, int, bool, bool]
STATES: list[State] = [
    (total, up, usable, first)
    for total in range(4, 22)
    for up in range(1, 11)
    for usable in (False, True)
    for first in (False, True)
    if not usable or total >= 12
]
"""All states of a player, as the arguments of a policy."""


def greedy_policies(run: Path, config: dict[str, Any]) -> tuple[GreedyPolicy, GreedyPolicy]:
    """Return the greedy policies of a run's model before and after training."""
    if config["agent"]["_target_"].endswith(".LanguagePPOAgent"):
        return scored_policy(config, None), scored_policy(config, run)
    return chat_policies(run, config)


def scored_policy(config: dict[str, Any], trained_run: Path | None) -> GreedyPolicy:
    """Return the greedy policy of a model that scores actions, with the weights of a run; None: before training."""
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.parts import build_parts

    agent = {**config["agent"], "init_from": None if trained_run is None else str(trained_run)}
    experiment = Experiment({**config, "agent": agent})
    parts = build_parts(experiment.config, experiment.resources.model, play_only=True, resources=experiment.resources)
    describe = getattr(parts.env, "env", parts.env)._describer.describe
    prompts = [describe((total, up, int(usable)), {}) for total, up, usable, _ in STATES]
    actions = parts.agents[0].policy.probabilities(prompts).argmax(-1).tolist()
    parts.close()
    hits = dict(zip(STATES, map(float, actions), strict=True))
    return GreedyPolicy(exact_return(lambda *state: hits[state]), 0.0)


def chat_policies(run: Path, config: dict[str, Any]) -> tuple[GreedyPolicy, GreedyPolicy]:
    """Return the greedy policies of a chat model before and after training."""
    from llmrl.agents.llm_player.answer_format import parse_player_reply
    from llmrl.agents.llm_player.conversation import PlayerConversation
    from llmrl.core.records import ChatRequest
    from llmrl.core.seeding import Seeds
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.model_export import export_model
    from llmrl.experiment.parts import build_parts
    from llmrl.llms.invalid_reply import InvalidReply
    from llmrl.llms.local.chat import LocalChat

    if config["agent"]["history"]:
        raise SystemExit(
            f"{run}: agent.history={config['agent']['history']}: the reply depends on earlier turns; use 0"
        )
    experiment = Experiment(config)
    parts = build_parts(experiment.config, experiment.resources.model, play_only=True, resources=experiment.resources)
    player, chat = parts.agents[0].policy, parts.llm.provider
    describe = getattr(parts.env, "env", parts.env)._describer.describe
    requests = []
    for total, up, usable, first in STATES:
        conversation = PlayerConversation(n_answers=int(not first), steps=int(not first))
        conversation.add_observation(describe((total, up, int(usable)), {}), None, player.settings.observation_extras)
        requests.append(ChatRequest(conversation.messages(player.prompts.system(0, ()).text, 0)))

    def policy(model: str) -> GreedyPolicy:
        settings = replace(chat.settings, model=model, make=None, learn=None, adapter=None, temperature=0.0)
        actions, invalid = {}, 0
        for state, reply in zip(STATES, LocalChat(settings, "cpu", Seeds(0)).complete(requests), strict=True):
            try:
                actions[state] = float(parse_player_reply(reply.text, player.answers, None).action == 1)
            except InvalidReply:
                actions[state], invalid = 0.0, invalid + 1
        return GreedyPolicy(exact_return(lambda *state: actions[state]), invalid / len(STATES))

    initial = chat.model
    parts.close()
    with tempfile.TemporaryDirectory() as folder:
        return policy(initial), policy(str(export_model(run, Path(folder) / "model", merge=True, trusted=[])))


def reference_returns() -> dict[str, float]:
    """Return the expected returns of policies to compare with."""
    limit, threshold = best_threshold()
    return {
        "optimum": exact_return(None),
        f"stick from {limit} on": threshold,
        "always stick": exact_return(lambda *_: 0.0),
        "random": exact_return(lambda *_: 0.5),
    }


def main() -> None:
    """Print the returns, and write them to a file if one is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--data", type=Path, help="CSV file for the returns of the runs")
    options = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    for name, value in reference_returns().items():
        print(f"{name:<20}  {value:+.4f}")
        rows.append((name, "", "", round(value, 5), ""))
    if not options.runs:
        return
    from llmrl.run.artifacts import read_config

    for run in options.runs:
        config = read_config(run, ())
        before, after = greedy_policies(run, config)
        print(f"{after.returns:+.4f}, before training {before.returns:+.4f}, invalid {after.invalid:.1%}  {run}")
        group, seed = (config["llm"].get("learn") or {}).get("advantage", "llm_ppo"), config["seed"]
        rows.append((group, seed, round(before.returns, 5), round(after.returns, 5), round(after.invalid, 5)))
    if options.data is not None:
        with options.data.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("group", "seed", "before", "after", "invalid"))
            writer.writerows(rows)


if __name__ == "__main__":
    main()
