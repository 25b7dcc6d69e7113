"""Players with vision: the model receives the current frame and plays well from pictures alone."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from experiments import find_run_folder, run
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError
from llmrl.llms.call_log import read_calls

MAP = ("SFFF", "FHFH", "FFFH", "HFFG")
WAY = {(0, 0): "down", (1, 0): "down", (2, 0): "right", (2, 1): "down", (3, 1): "right", (3, 2): "right"}
FACE = (208, 210, 216)
"""The unique color of the walker in the picture of this map."""


def walker(url):
    """Return the row and the column of the walker in a picture of the lake."""
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB"))
    rows, columns = np.nonzero((image == FACE).all(axis=2))
    cell = image.shape[0] // len(MAP)
    return int(rows.mean() // cell), int(columns.mean() // cell)


def answer_from_image(messages):
    """Return the direction to the goal, from the last picture alone."""
    assert all(isinstance(message["content"], str) for message in messages[:-1])
    prompt, *images = messages[-1]["content"]
    assert "observation" not in json.loads(prompt["text"]) and 1 <= len(images) <= 2
    return json.dumps({"action": WAY[walker(images[-1]["image_url"]["url"])]})


def play(root, *overrides):
    lake = ("env=frozen_lake", "env.kwargs.is_slippery=false", "agent=llm_player", "agent.reflection=false")
    run(*lake, "agent.show_frames=2", "play.episodes=3", "env.n_envs=2", f"output_root={root}", *overrides)
    return find_run_folder(root)


@pytest.mark.slow
def test_vision_model_finds_goal(tmp_path):
    with FakeOpenAIServer(reply=answer_from_image) as server:
        server_ = ("llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=fake-model", "llm.cache=off")
        folder = play(tmp_path, *server_, "agent.show_text=false", "llm.structured=false")
    results = json.loads((folder / "results.json").read_text())
    assert results["per_episode"]["success"] == [1.0] * 3 and results["per_episode"]["length"] == [6.0] * 3
    calls = list(read_calls(folder / "llm_calls.jsonl"))
    # One picture at the start, then the two newest; the files are there, each place of the walker once.
    assert sorted(len(call["messages"][-1]["images"]) for call in calls) == [1] * 3 + [2] * 15
    assert len(list((folder / "llm_images").iterdir())) == len(WAY)
    assert not any("images" in message for call in calls for message in call["messages"][:-1])


@pytest.mark.slow
def test_log_replay_is_identical(tmp_path):
    first = play(tmp_path / "first", "llm=scripted")
    replay_folder = play(tmp_path / "again", "llm=replay", f"llm.calls={first}")
    scores = [json.loads((folder / "results.json").read_text())["per_episode"] for folder in (first, replay_folder)]
    assert scores[0] == scores[1]


def test_rejects_text_model():
    from road_game import FunctionModel, GameSession, make_reply

    with pytest.raises(ConfigError, match=r"agent\.show_frames=1:"):
        GameSession(FunctionModel(lambda messages: make_reply("stay")), show_frames=1)
    with pytest.raises(ConfigError, match=r"agent\.show_text=false"):
        GameSession(FunctionModel(lambda messages: make_reply("stay")), show_text=False)


@pytest.mark.slow
def test_society_players_see_individual_views(tmp_path):
    """Compare with the pixels that the environment gives each player."""
    society = ("experiment=zero_shot/cleanup", "env=cleanup", "llm=scripted", "env.horizon=2", "play.videos=0")
    frames = []
    for name, overrides in (("drawn", []), ("observed", ["env.observe=[text,pixels]"])):
        run(*society, *overrides, "agent.show_frames=1", "agent.action_interval=1", f"output_root={tmp_path / name}")
        folder = find_run_folder(tmp_path / name)
        calls = list(read_calls(folder / "llm_calls.jsonl"))
        frames.append({call["question_id"]: call["messages"][-1]["images"] for call in calls})
        assert len(calls) == 14 and len({player_image for [player_image] in frames[-1].values()}) > 7
    assert frames[0] == frames[1]
