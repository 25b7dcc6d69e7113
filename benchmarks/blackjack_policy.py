"""Exact expected returns of blackjack policies: trained language models, rules, and the optimal policy.

    python benchmarks/blackjack_policy.py [RUN ...] [--data FILE]

The game is Blackjack-v1 of Gymnasium with `sab=True`: cards are drawn with replacement, the dealer draws below 17, and
a natural wins unless the dealer also has one. RUN is the folder of a run of `env=blackjack` with `agent=llm_player
agent.history=0` or `agent=llm_ppo` and a trained model. The model acts greedily in every state, and invalid replies
count as sticking.
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
"""Probability of each card; 1 is an ace, and face cards count 10."""
DEALER_STAND = 17
"""Sum from which the dealer stops drawing."""
Policy = Callable[[int, int, bool, bool], float]
"""Function from (sum of the player, dealer's face-up card, usable ace, first decision) to the probability of a hit."""


def add_card(total: int, usable_ace: bool, card: int) -> tuple[int, bool]:
    """Return (sum, usable ace) after a card is added."""
    hard = total - 10 * usable_ace + card
    usable_ace = usable_ace or card == 1
    return (hard + 10, True) if usable_ace and hard + 10 <= 21 else (hard, False)


@functools.cache
def compute_dealer_distribution(total: int, usable_ace: bool) -> dict[int, float]:
    """Return the probabilities of the dealer's final sums; 0 denotes a sum above 21."""
    if total > 21:
        return {0: 1.0}
    if total >= DEALER_STAND:
        return {total: 1.0}
    probabilities: dict[int, float] = {}
    for card, probability in CARDS.items():
        for final, final_probability in compute_dealer_distribution(*add_card(total, usable_ace, card)).items():
            probabilities[final] = probabilities.get(final, 0.0) + probability * final_probability
    return probabilities


@functools.cache
def compute_stick_value(total: int, dealer_card: int, natural: bool) -> float:
    """Return the expected reward of sticking.

    Args:
        total: sum of the player.
        dealer_card: face-up card of the dealer.
        natural: whether the first two cards of the player are an ace and a ten.
    """
    value = 0.0
    for card, probability in CARDS.items():
        if natural and {dealer_card, card} != {1, 10}:
            value += probability
            continue
        for final, final_probability in compute_dealer_distribution(
            *add_card(*add_card(0, False, dealer_card), card)
        ).items():
            value += probability * final_probability * ((total > final) - (total < final))
    return value


def exact_return(policy: Policy | None) -> float:
    """Return the exact expected return of a policy, or of the optimal policy if it is None."""

    @functools.cache
    def value(total: int, usable_ace: bool, dealer_card: int, first: bool) -> float:
        if total > 21:
            return -1.0
        stick = compute_stick_value(total, dealer_card, first and total == 21)
        hit = sum(p * value(*add_card(total, usable_ace, card), dealer_card, False) for card, p in CARDS.items())
        if policy is None:
            return max(stick, hit)
        probability = policy(total, dealer_card, usable_ace, first)
        return probability * hit + (1 - probability) * stick

    return sum(
        p_dealer * p_first * p_second * value(*add_card(*add_card(0, False, first), second), dealer_card, True)
        for dealer_card, p_dealer in CARDS.items()
        for first, p_first in CARDS.items()
        for second, p_second in CARDS.items()
    )


def best_threshold() -> tuple[int, float]:
    """Return the best threshold policy: the sum from which it sticks, and its expected return."""
    returns = {limit: exact_return(lambda total, *_, limit=limit: float(total < limit)) for limit in range(4, 23)}
    best = max(returns, key=lambda limit: returns[limit])
    return best, returns[best]


@dataclass(frozen=True)
class GreedyPolicy:
    """Greedy policy of a language model.

    Attributes:
        returns: expected return.
        invalid: share of states with an invalid reply, in which the policy sticks.
    """

    returns: float
    invalid: float


State = tuple[int, int, bool, bool]
STATES: list[State] = [
    (total, dealer_card, usable_ace, first)
    for total in range(4, 22)
    for dealer_card in range(1, 11)
    for usable_ace in (False, True)
    for first in (False, True)
    if not usable_ace or total >= 12
]
"""All states of the player, as arguments of a policy."""


def evaluate_greedy_policies(run: Path, config: dict[str, Any]) -> tuple[GreedyPolicy, GreedyPolicy]:
    """Return the greedy policies of a run's model before and after training."""
    if config["agent"]["_target_"].endswith(".LanguagePPOAgent"):
        return evaluate_scorer_policy(config, None), evaluate_scorer_policy(config, run)
    return evaluate_chat_policies(run, config)


def evaluate_scorer_policy(config: dict[str, Any], trained_run: Path | None) -> GreedyPolicy:
    """Return the greedy policy of a model that scores actions, with the weights of a run, or untrained without one."""
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.parts import build_parts

    agent = {**config["agent"], "init_from": None if trained_run is None else str(trained_run)}
    experiment = Experiment({**config, "agent": agent})
    parts = build_parts(experiment.config, experiment.resources.model, play_only=True, resources=experiment.resources)
    describe = getattr(parts.env, "env", parts.env)._describer.describe
    prompts = [describe((total, dealer_card, int(usable_ace)), {}) for total, dealer_card, usable_ace, _ in STATES]
    actions = parts.agents[0].policy.probabilities(prompts).argmax(-1).tolist()
    parts.close()
    hits = dict(zip(STATES, map(float, actions), strict=True))
    return GreedyPolicy(exact_return(lambda *state: hits[state]), 0.0)


def evaluate_chat_policies(run: Path, config: dict[str, Any]) -> tuple[GreedyPolicy, GreedyPolicy]:
    """Return the greedy policies of a chat model before and after training.

    Raises:
        SystemExit: `agent.history` is not 0.
    """
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
    for total, dealer_card, usable_ace, first in STATES:
        conversation = PlayerConversation(n_answers=int(not first), steps=int(not first))
        conversation.add_observation(
            describe((total, dealer_card, int(usable_ace)), {}), None, player.settings.observation_extras
        )
        requests.append(ChatRequest(conversation.messages(player.prompts.system(0, ()).text, 0)))

    def evaluate_policy(model: str) -> GreedyPolicy:
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
        return evaluate_policy(initial), evaluate_policy(
            str(export_model(run, Path(folder) / "model", merge=True, trusted=[]))
        )


def compute_reference_returns() -> dict[str, float]:
    """Return the expected returns of reference policies by name."""
    limit, threshold = best_threshold()
    return {
        "optimum": exact_return(None),
        f"stick from {limit} on": threshold,
        "always stick": exact_return(lambda *_: 0.0),
        "random": exact_return(lambda *_: 0.5),
    }


def main() -> None:
    """Print the returns, and write them to the file of `--data`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--data", type=Path, help="CSV file for the returns of the runs")
    options = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    for name, value in compute_reference_returns().items():
        print(f"{name:<20}  {value:+.4f}")
        rows.append((name, "", "", round(value, 5), ""))
    if not options.runs:
        return
    from llmrl.run.artifacts import read_config

    for run in options.runs:
        config = read_config(run, ())
        before, after = evaluate_greedy_policies(run, config)
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
