"""Messages between players of several members of a mixed society."""

import json

import pytest
import torch

from environments import make_env
from llmrl.agents.llm_player.talk import Talk, connect_talks
from llmrl.agents.mixed.mixed_agent import MixedPolicy, SeatedPolicy
from llmrl.core.errors import ConfigError
from llmrl.core.records import ChatReply
from llmrl.llms.client import ChatClient
from llmrl.rollout.collector import Collector
from models import EchoProvider
from players import make_llm_player

SEATS = ((0, 2), (1,))


class Speakers(EchoProvider):
    """A model whose players say their names; the first reply of the given player is invalid."""

    def __init__(self, invalid=""):
        super().__init__()
        self.invalid = invalid

    def complete(self, requests):
        replies = []
        for request in requests:
            player = request.messages[0]["content"].rpartition("You are ")[2].split(".")[0]
            observations = [m["content"] for m in request.messages if m["content"].startswith("{")]
            now = json.loads(observations[-1])
            self.asked.append((player, now))
            reply = {"message": f"I am {player}."} if now.get("talk") else {"reflection": "x", "action": "take_5"}
            if player == self.invalid and now.get("talk"):
                self.invalid, reply = "", []
            replies.append(ChatReply(json.dumps(reply), 10, 5))
        return replies


class CountingClient(ChatClient):
    """A client that records the number of requests in each batch."""

    def __init__(self, model):
        super().__init__(model)
        self.batches = []

    def chat(self, requests):
        self.batches.append(len(requests))
        return super().chat(requests)


def play(model, intervals=(1, 1), steps=2, n_envs=2):
    env = make_env("fishery", n_envs=n_envs, n_agents=3, observe=["text"], mechanism=False)
    client = CountingClient(model)
    agents = [
        make_llm_player(env.spec.select_seats(seats, True), client, None, message_interval=interval, history=0)
        for seats, interval in zip(SEATS, intervals, strict=True)
    ]
    connect_talks([agent.policy.talk for agent in agents], SEATS)
    parts = [SeatedPolicy(agent.policy, SEATS[i]) for i, agent in enumerate(agents)]
    collector = Collector(env, MixedPolicy(parts, 3), "cpu")
    collector.reset(0)
    collector.collect(steps, torch.Generator(), learn=False)
    return client


@pytest.mark.parametrize("invalid", ["", "player 2"])
def test_players_hear_other_members(invalid):
    """Members wait for one another, also if one of them has to correct a message."""
    client = play(Speakers(invalid))
    acts = [(player, now) for player, now in client.provider.asked if not now.get("talk")]
    assert len(acts) == 2 * 2 * 3
    for player, now in acts:
        expected = [f"player {i}" for i in (1, 2, 3) if f"player {i}" != player]
        assert [entry["from"] for entry in now["heard"]] == expected
        assert all(entry["message"] == f"I am {entry['from']}." for entry in now["heard"])


def test_requests_of_members_share_batch():
    assert play(Speakers()).batches == [6] * 4


def test_members_with_different_rounds_raise():
    with pytest.raises(ConfigError, match="message_interval"):
        play(Speakers(), intervals=(1, 2))


def test_single_speaker_raises():
    spec = make_env("fishery", n_envs=1, n_agents=3, observe=["text"], mechanism=False).spec
    talk = Talk(spec.select_seats([1], True), 1, "all", 100)
    with pytest.raises(ConfigError, match=r"agent\.message_interval"):
        connect_talks([talk], [(1,)])
