"""Agents of a team are advised by their own plans, or by the mixture of the plans of all."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
import pytest

from llmrl.core.errors import ConfigError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.core.seeding import Seeds
from llmrl.envs.particles.scenario import Scenario
from llmrl.envs.particles.simple_speaker_listener import SimpleSpeakerListener
from llmrl.envs.particles.simple_spread import SimpleSpread
from llmrl.envs.particles.vec_env import ParticlesEnv
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider
from llmrl.teachers.policy_teacher import PolicyTeacher
from llmrl.teachers.schedules import Constant
from shipped import build_option


class Wanderer(Provider):
    """Model whose agents go to the landmark of their own number, except in three of ten answers, which are `stay`."""

    label = "wanderer"
    identity = {"model": "wanderer"}
    parallel = False

    def __init__(self) -> None:
        super().__init__(input_price=0.0, output_price=0.0)

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        return [ChatReply(self._plan(request)) for request in requests]

    def _plan(self, request: ChatRequest) -> str:
        state = re.findall(r"^State: (.+)$", request.messages[0]["content"], re.MULTILINE)[-1]
        landmark = "landmark " + re.findall(r"The agent is agent_(\d)", state)[0]
        step = {"skill": "stay", "object": ""} if request.repeat < 3 else {"skill": "go to", "object": landmark}
        return json.dumps({"reasoning": "mine", "plan": [step]})


def make_env(scenario: Scenario) -> ParticlesEnv:
    return ParticlesEnv(Seeds(1), scenario, n_envs=7)


def make_teacher(env: ParticlesEnv, sharing: str) -> PolicyTeacher:
    options = {"spec": env.spec, "seeds": Seeds(0), "llm": ChatClient(Wanderer()), "schedule": Constant(1.0)}
    return build_option("teacher/llm", **options, sharing=sharing)


def test_agents_share_mixture() -> None:
    env = make_env(SimpleSpread())
    observation = {"vector": env.reset(seed=1)["vector"]}
    separate, mixture = (make_teacher(env, sharing).plan_policy for sharing in ("own", "mixture"))
    rows = separate.advise(separate.scenes(observation)).reshape(7, 3, 5)
    shared = mixture.advise(mixture.scenes(observation)).reshape(7, 3, 5)
    np.testing.assert_allclose(shared, np.broadcast_to(rows.mean(1, keepdims=True), shared.shape), atol=1e-6)
    assert np.abs(rows - rows.mean(1, keepdims=True)).max() > 0.1


def test_single_agent_has_no_mixture() -> None:
    with pytest.raises(ConfigError, match="sharing=mixture"):
        make_teacher(make_env(SimpleSpread(1)), "mixture")


def test_agents_with_different_actions_have_no_mixture() -> None:
    with pytest.raises(ConfigError, match="equal actions"):
        make_teacher(make_env(SimpleSpeakerListener()), "mixture")
