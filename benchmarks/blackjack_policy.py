"""Exact expected return of blackjack policies: of a trained chat model, of rules, and of the optimum.

    python benchmarks/blackjack_policy.py [RUN ...]

The game is Gymnasium's Blackjack-v1 with `sab=True`: cards are drawn with replacement, the dealer draws up to 16, and a
natural wins unless the dealer has one, too. RUN is the folder of a run of `env=blackjack agent=llm_player
agent.history=0` whose model has learned; the model replies greedily to every state, and an invalid reply sticks.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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


def model_policy(run: Path) -> tuple[Policy, float]:
    """Return the greedy policy of a run's trained model, and the share of states with an invalid reply."""
    from llmrl.agents.llm_player.answer_format import read_reply
    from llmrl.agents.llm_player.conversation import PlayerConversation
    from llmrl.core.records import ChatRequest
    from llmrl.core.seeding import Seeds
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.model_export import export_model
    from llmrl.experiment.parts import build_parts
    from llmrl.llms.invalid_reply import InvalidReply
    from llmrl.llms.local.chat import LocalChat
    from llmrl.run.artifacts import read_config

    config = read_config(run, ())
    if config["agent"]["history"]:
        raise SystemExit(
            f"{run}: agent.history={config['agent']['history']}: the reply depends on earlier turns; use 0"
        )
    experiment = Experiment(config)
    parts = build_parts(experiment.config, experiment.resources.model, play_only=True, resources=experiment.resources)
    player, chat = parts.agents[0].policy, parts.llm.provider
    describe = getattr(parts.env, "env", parts.env)._describer.describe
    states = [
        (total, up, usable, first)
        for total in range(4, 22)
        for up in range(1, 11)
        for usable in (False, True)
        for first in (False, True)
        if not usable or total >= 12
    ]
    requests = []
    for total, up, usable, first in states:
        conversation = PlayerConversation(decided=int(not first), steps=int(not first))
        conversation.add_observation(describe((total, up, int(usable)), {}), None, player.settings.additions)
        requests.append(ChatRequest(conversation.messages(player.system[0].text, 0)))
    with tempfile.TemporaryDirectory() as folder:
        model = export_model(run, Path(folder) / "model", merge=True)
        settings = replace(chat.settings, model=str(model), make=None, learn=None, adapter=None, temperature=0.0)
        replies = LocalChat(settings, "cpu", Seeds(0)).complete(requests)
    parts.close()
    actions, invalid = {}, 0
    for state, reply in zip(states, replies, strict=True):
        try:
            actions[state] = float(read_reply(reply.text, player.answers, None).action == 1)
        except InvalidReply:
            actions[state], invalid = 0.0, invalid + 1
    return lambda *state: actions[state], invalid / len(states)


def main() -> None:
    """Print the returns."""
    print(f"optimum                 {exact_return(None):+.4f}")
    limit, threshold = best_threshold()
    print(f"stick from {limit} on        {threshold:+.4f}  (best policy that looks only at its sum)")
    print(f"always stick            {exact_return(lambda *_: 0.0):+.4f}  (best policy without observations)")
    print(f"random                  {exact_return(lambda *_: 0.5):+.4f}")
    for folder in sys.argv[1:]:
        policy, invalid = model_policy(Path(folder))
        print(f"{exact_return(policy):+.4f}  invalid in {invalid:.1%} of states  {folder}")


if __name__ == "__main__":
    main()
