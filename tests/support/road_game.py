"""Toy text game for language model players, a model that replies with a function, and sessions of a player."""

import json

import numpy as np
import torch

from llmrl.core.observers import Transition
from llmrl.core.records import ChatReply, Step
from llmrl.core.spaces import Channel, EnvDescription, EnvSpec
from models import EchoProvider, make_client
from players import make_llm_player

ACTIONS = (("left", "to the left"), ("stay", "nothing"), ("right", "to the right"))


class FunctionModel(EchoProvider):
    """Model whose replies are a function of the messages and which records its requests."""

    def __init__(self, answer=lambda messages: make_reply("stay"), **facts):
        super().__init__(remote=False, **facts)
        self.answer, self.requests, self.batches = answer, [], []

    def complete(self, requests):
        self.requests += requests
        self.batches.append(len(requests))
        return [ChatReply(self.answer(r.messages), prompt_tokens=10, completion_tokens=5) for r in requests]


def make_reply(action, reflection="why not"):
    return json.dumps({"reflection": reflection, "action": action})


def choose_first_legal(messages):
    return json.loads(messages[-1]["content"])["legal_actions"][0]


def make_spec(n_envs=1, n_agents=1, mask=False, numbers=None):
    channels = {"text": Channel((), "object")}
    if mask:
        channels["action_mask"] = Channel((3,), "bool", 0, 1)
    actions = ACTIONS if numbers is None else (("speed", "how fast"),)
    text = EnvDescription("Get to the right.", (("x", "your place"),), actions)
    n = 3 if numbers is None else 0
    return EnvSpec(
        "road", n_envs, n_agents, channels, n, ("left", "stay", "right")[:n], 10, continuous_actions=numbers, text=text
    )


class GameSession:
    """Session that plays a policy like a collector; observations are the number of the step as JSON."""

    def __init__(self, model, n_envs=1, n_agents=1, mask=False, numbers=None, **options):
        self.spec, self.model = make_spec(n_envs, n_agents, mask, numbers), model
        client = make_client(model, failures=options.pop("failures", "stop"))
        self.agent = make_llm_player(self.spec, client, options.pop("prompt_folder", None), **options)
        self.policy, self.t = self.agent.policy, 0

    def start(self, *games):
        starts = np.isin(np.arange(self.spec.n_envs), games or np.arange(self.spec.n_envs))
        self.policy.on_reset(starts, {})
        return self

    def step(self, ended=(), reward=1.0, text=None, mask=None, terminated=True):
        shape = (self.spec.n_envs, self.spec.n_agents)
        texts = np.empty(shape, dtype=object)
        for game in range(shape[0]):
            for agent in range(shape[1]):
                texts[game, agent] = json.dumps({"x": self.t}) if text is None else text
        observation = {"text": texts}
        if mask is not None:
            observation["action_mask"] = torch.tensor(mask).expand(*shape, 3)
        act = self.policy.act(observation)
        done = np.isin(np.arange(shape[0]), ended)
        rewards = np.full(shape, reward, dtype=np.float32)
        step = Step({}, rewards, rewards, done & terminated, done & (not terminated))
        self.policy.on_step(Transition(observation, act, step, done))
        self.t += 1
        return act

    @property
    def last(self):
        """Messages of the last request without the system message, as (role, decoded content)."""
        return [(m["role"], json.loads(m["content"])) for m in self.model.requests[-1].messages[1:]]
