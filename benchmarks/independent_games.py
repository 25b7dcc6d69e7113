"""Sixteen games of a language player, one reply in ten of which is slow: in waves, and each by itself.

Prints seconds of both, and the ideal: sixteen places, at each of which the next episode begins when one ends, and
nothing takes time but the replies. Target: within 1.2 of it.

First of a player that is alone in its game (Mountain Car), then of a society (Harvest, three players), whose players
decide at the same time: a step of it takes as long as the slowest of its own players' replies.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from llmrl.api.environments import make_env

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from fake_openai_server import FakeOpenAIServer
from llmrl.core.seeding import Seeds
from llmrl.llms.client import ChatClient, ClientPolicies
from llmrl.llms.rate_limit import RateLimit
from llmrl.loops.independent_games import IndependentGames
from llmrl.rollout.collector import Collector, evaluate_policy
from models import make_openai_model
from players import make_llm_player

GAMES, EPISODES, STEPS, PLAYERS = 16, 32, 25, 3
FAST, SLOW, SHARE = 0.1, 1.0, 0.1


def alone() -> Any:
    """Create games of one player."""
    return make_env("gymnasium", id="MountainCar-v0", n_envs=GAMES, horizon=STEPS, text="mountain_car")


def society() -> Any:
    """Create games of several players."""
    return make_env(
        "harvest", n_envs=GAMES, n_agents=PLAYERS, horizon=STEPS, observe=["text"], rules="upstream", mechanism=None
    )


class Watched(ChatClient):
    """Remembers which questions were asked together, by the episode that they are of."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.asked: dict[int, list[float]] = defaultdict(list)  # seconds of an episode's steps
        self._watch = threading.Lock()

    def fetch(self, requests: Any) -> Any:
        """Record the longest time of a reply of each episode."""
        longest: dict[int, float] = {}
        for request in requests:
            [episode] = re.findall(r"^episode (\d+),", request.question_id)
            longest[int(episode)] = max(longest.get(int(episode), 0.0), seconds_of(request.messages))
        with self._watch:
            for episode, seconds in longest.items():
                self.asked[episode].append(seconds)
        return super().fetch(requests)


def seconds_of(messages: Any) -> float:
    """Return the seconds that a reply takes, a function of the question."""
    drawn = hashlib.sha256(json.dumps(list(messages)).encode()).digest()[0]
    return SLOW if drawn < 256 * SHARE else FAST


def reply(messages: list[dict[str, str]]) -> str:
    """Return the first action, after a delay."""
    time.sleep(seconds_of(messages))
    told = messages[0]["content"].partition("# What you can do")[2]
    [action, *_] = re.findall(r"^- (\w[\w ]*): ", told, re.MULTILINE)
    return json.dumps({"reflection": "Let us see.", "action": action})


def measured(made: Any, apart: bool) -> tuple[float, float]:
    """Return the seconds that the episodes took, and those that they would take if only replies took time."""
    with FakeOpenAIServer(reply=reply) as server:
        model = make_openai_model(server.url, "fake-model", timeout=60.0)
        env = made()
        env.make_single_game().reset(seed=0)  # what is compiled once is ready
        client = Watched(model, policies=ClientPolicies(limits=RateLimit(GAMES * env.spec.n_agents)))
        policy = make_llm_player(env.spec, client, history=STEPS).policy
        seeds = Seeds(1)
        begun = time.perf_counter()
        if apart:
            games = IndependentGames(env, policy, "cpu", EPISODES, seeds.integer)
            try:
                while games.is_running:
                    games.advance()
            finally:
                games.close()
        else:
            policy.episodes = range(GAMES)
            evaluate_policy(Collector(env, policy, "cpu"), EPISODES, seeds, exactly=True)
        seconds = time.perf_counter() - begun
        client.close()
    steps = [steps for _, steps in sorted(client.asked.items())]
    if not apart:  # both waves were counted under the games' numbers
        steps = [part for both in steps for part in (both[:STEPS], both[STEPS:])]
    places = [0.0] * GAMES
    for episode in steps:
        heapq.heapreplace(places, places[0] + sum(episode))
    return seconds, max(places)


if __name__ == "__main__":
    for kind, made in (("one player", alone), (f"{PLAYERS} players", society)):
        for name, apart in (("waves", False), ("each game by itself", True)):
            seconds, ideal = measured(made, apart)
            told = f"{seconds:6.1f} s, ideal {ideal:5.1f} s: {seconds / ideal:.2f}"
            print(f"{kind:12} {name:20} {told}", flush=True)
