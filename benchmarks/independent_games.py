"""Duration of sixteen games of language model players, synchronized and asynchronous, if 10 % of replies are slow.

Prints the duration of both, and the ideal duration: sixteen parallel slots that start the next episode immediately
after an episode ends, without any time except for replies. Target: at most 1.2 times the ideal.

The first environment has a single player (Mountain Car). The second is a society (Harvest, three players), whose
players act simultaneously: the duration of a step is that of the slowest reply of the players.
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
FAST_SECONDS, SLOW_SECONDS, SLOW_SHARE = 0.1, 1.0, 0.1


def make_single_player_env() -> Any:
    """Create games with one player."""
    return make_env("gymnasium", id="MountainCar-v0", n_envs=GAMES, horizon=STEPS, text="mountain_car")


def make_society_env() -> Any:
    """Create games with several players."""
    return make_env(
        "harvest", n_envs=GAMES, n_agents=PLAYERS, horizon=STEPS, observe=["text"], rules="upstream", mechanism=None
    )


class RecordingClient(ChatClient):
    """Chat client that records the reply time of each step, by episode."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.step_seconds: dict[int, list[float]] = defaultdict(list)  # by episode
        self._record_lock = threading.Lock()

    def fetch(self, requests: Any) -> Any:
        """Record the longest reply time of each episode, and send the requests."""
        reply_seconds: dict[int, float] = {}
        for request in requests:
            [episode] = re.findall(r"^episode (\d+),", request.question_id)
            reply_seconds[int(episode)] = max(reply_seconds.get(int(episode), 0.0), get_delay(request.messages))
        with self._record_lock:
            for episode, seconds in reply_seconds.items():
                self.step_seconds[episode].append(seconds)
        return super().fetch(requests)


def get_delay(messages: Any) -> float:
    """Return the delay of a reply, seconds, as a function of its question."""
    digest_byte = hashlib.sha256(json.dumps(list(messages)).encode()).digest()[0]
    return SLOW_SECONDS if digest_byte < 256 * SLOW_SHARE else FAST_SECONDS


def reply(messages: list[dict[str, str]]) -> str:
    """Return the first action in the prompt, after a delay."""
    time.sleep(get_delay(messages))
    action_text = messages[0]["content"].partition("# What you can do")[2]
    [action, *_] = re.findall(r"^- (\w[\w ]*): ", action_text, re.MULTILINE)
    return json.dumps({"reflection": "Let us see.", "action": action})


def measure(make_games: Any, asynchronous: bool) -> tuple[float, float]:
    """Play episodes, and return their duration and the ideal duration, seconds."""
    with FakeOpenAIServer(reply=reply) as server:
        model = make_openai_model(server.url, "fake-model", timeout=60.0)
        env = make_games()
        env.make_single_game().reset(seed=0)  # compile before the measurement
        client = RecordingClient(model, policies=ClientPolicies(limits=RateLimit(GAMES * env.spec.n_agents)))
        policy = make_llm_player(env.spec, client, history=STEPS).policy
        seeds = Seeds(1)
        start = time.perf_counter()
        if asynchronous:
            games = IndependentGames(env, policy, "cpu", EPISODES, seeds.integer)
            try:
                while games.is_running:
                    games.advance()
            finally:
                games.close()
        else:
            policy.episodes = range(GAMES)
            evaluate_policy(Collector(env, policy, "cpu"), EPISODES, seeds, exactly=True)
        seconds = time.perf_counter() - start
        client.close()
    episodes = [steps for _, steps in sorted(client.step_seconds.items())]
    if not asynchronous:  # each game has played two episodes with the same episode number
        episodes = [steps for game_steps in episodes for steps in (game_steps[:STEPS], game_steps[STEPS:])]
    slots = [0.0] * GAMES
    for steps in episodes:
        heapq.heapreplace(slots, slots[0] + sum(steps))
    return seconds, max(slots)


if __name__ == "__main__":
    for players, make_games in (("one player", make_single_player_env), (f"{PLAYERS} players", make_society_env)):
        for name, asynchronous in (("synchronized", False), ("asynchronous", True)):
            seconds, ideal = measure(make_games, asynchronous)
            print(f"{players:12} {name:20} {seconds:6.1f} s, ideal {ideal:5.1f} s: {seconds / ideal:.2f}", flush=True)
