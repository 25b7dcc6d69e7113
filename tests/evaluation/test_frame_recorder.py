"""Recorded frames and the thoughts beside them."""

from types import SimpleNamespace

import numpy as np
import torch

from llmrl.core.frames import enlarge
from llmrl.core.observers import Transition
from llmrl.core.records import PolicyOutput, Step
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.evaluation.videos import (
    MAX_DESCRIBED_AGENTS,
    MAX_DISPLAYED_ACTIONS,
    TEXT_WIDTH,
    DecisionDescriber,
    FrameRecorder,
)

ACTIONS = ("stay", "left", "right", "down", "up", "jump")


class Planner:
    """A teacher that plays and plans."""

    channels = ("vector",)

    def act(self, observation, state=None, generator=None, greedy=False):
        assert greedy and len(observation["vector"]) == 1
        shape = observation["vector"].shape[:2]
        return PolicyOutput(torch.zeros(shape, dtype=torch.int64), logits=torch.zeros(*shape, len(ACTIONS)))

    def thoughts(self, game, agent):
        return [f"game {game}", f"go to landmark {agent}"]


def make_spec(n_agents):
    vector = Channel((2,), "float32")
    return EnvSpec("toy", 2, n_agents, {"vector": vector}, len(ACTIONS), ACTIONS, 5)


def transition(n_agents, notes=None):
    logits = torch.zeros(2, n_agents, len(ACTIONS))
    logits[..., 2] = 3.0
    action = torch.full((2, n_agents), 2)
    step = Step({"vector": np.ones((2, n_agents, 2))}, *(np.zeros((2, n_agents)),) * 2, *(np.zeros(2, dtype=bool),) * 2)
    observation = {"vector": np.zeros((2, n_agents, 2))}
    return Transition(observation, PolicyOutput(action, logits=logits, notes=notes), step, np.zeros(2, dtype=bool))


def test_thoughts_of_player_and_teacher():
    notes = [[{"reflection": "A door."}], [{}]]
    captions = DecisionDescriber(object(), make_spec(1), Planner(), "cpu").describe_step(transition(1, notes))
    assert [heading for heading, _ in captions] == [
        *("action", "probabilities of the policy", "probabilities of the teacher", "reflection", "plans")
    ]
    texts = dict(captions)
    assert texts["action"] == "right" and texts["reflection"] == "A door."
    assert texts["probabilities of the policy"].startswith("right 0.80, stay 0.04")
    assert texts["probabilities of the policy"].count(",") == MAX_DISPLAYED_ACTIONS - 1
    assert texts["plans"] == "game 0\ngo to landmark 0"


def test_thoughts_name_several_agents():
    captions = DecisionDescriber(object(), make_spec(MAX_DESCRIBED_AGENTS + 1), None, "cpu").describe_step(
        transition(MAX_DESCRIBED_AGENTS + 1)
    )
    actions = [heading for heading, _ in captions if heading.endswith("action")]
    assert actions == [f"agent {i}, action" for i in range(MAX_DESCRIBED_AGENTS)]


def test_captions_match_world(tmp_path, monkeypatch):
    world = np.full((20, 30, 3), 100, dtype=np.uint8)
    env = SimpleNamespace(spec=make_spec(1), render=lambda game: world)
    recorder = FrameRecorder(env, describer=DecisionDescriber(object(), make_spec(1), None, "cpu"))
    recorder.on_reset(np.ones(2, dtype=bool), {})
    recorder.on_step(transition(1))
    videos = {}
    monkeypatch.setattr(
        "llmrl.evaluation.videos.save_video",
        lambda frames, folder, name, fps: videos.update({name: list(frames)}) or [],
    )
    recorder.save(tmp_path / "videos", 10)
    [first, last] = videos["world"]
    height, width, _ = enlarge(world).shape
    assert first.shape == last.shape == (height, width + TEXT_WIDTH, 3)
    assert (first[:, :width] == 100).all() and (first[:, width:] != 255).any()
    assert (last[:, width:] == 255).all(), "no action follows on the last state"
