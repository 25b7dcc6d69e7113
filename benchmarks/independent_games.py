"""Sixteen games of a language player, one reply in ten of which is slow: in waves, and each by itself.

Prints seconds of both, and the ideal: sixteen places, at each of which the next episode begins when one ends, and
nothing takes time but the replies. Target: within 1.2 of it.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from fake_openai_server import FakeOpenAIServer
from llmrl.agents.llm_player.agent import LLMPlayer
from llmrl.core.seeding import Seeds
from llmrl.envs.gym.vec_env import GymnasiumEnv
from llmrl.evaluation.evaluate_environment import EpisodeSettings, evaluate_environment
from llmrl.llms.client import ChatClient
from llmrl.llms.openai_compatible import OpenAICompatibleChat
from llmrl.llms.rate_limit import RateLimit
from llmrl.rollout.collector import Collector
from llmrl.rollout.evaluate_policy import evaluate_policy

GAMES, EPISODES, STEPS = 16, 32, 25
FAST, SLOW, SHARE = 0.1, 1.0, 0.1


def measured(apart: bool) -> tuple[float, float]:
    """Seconds that the episodes took, and would take if only replies took time."""
    took: dict[str, float] = {}  # seconds of each episode's replies, in the order of their beginnings

    def reply(messages: list[dict[str, str]]) -> str:
        said = messages[1]["content"]  # the first turn of the episode
        slow = hashlib.sha256(json.dumps(messages).encode()).digest()[0] < 256 * SHARE
        took[said] = took.get(said, 0.0) + (SLOW if slow else FAST)
        time.sleep(SLOW if slow else FAST)
        return json.dumps({"reflection": "Let us see.", "action": "right"})

    with FakeOpenAIServer(reply=reply) as server:
        model = OpenAICompatibleChat(server.url, "fake-model", timeout=30.0)
        client = ChatClient(model, limits=RateLimit(GAMES))
        env = GymnasiumEnv(Seeds(0), "MountainCar-v0", n_envs=GAMES, horizon=STEPS, text="mountain_car")
        policy = LLMPlayer(env.spec, client, None, history=STEPS).policy
        begun = time.perf_counter()
        if apart:
            evaluate_environment(env, policy, "cpu", EpisodeSettings(EPISODES, Seeds(1), exactly=True))
        else:
            evaluate_policy(Collector(env, policy, "cpu"), EPISODES, Seeds(1), exactly=True)
        seconds = time.perf_counter() - begun
    places = [0.0] * GAMES
    for episode in took.values():
        heapq.heapreplace(places, places[0] + episode)
    return seconds, max(places)


if __name__ == "__main__":
    for name, apart in (("waves", False), ("each game by itself", True)):
        seconds, ideal = measured(apart)
        print(f"{name:20} {seconds:6.1f} s, ideal {ideal:5.1f} s: {seconds / ideal:.2f}", flush=True)
