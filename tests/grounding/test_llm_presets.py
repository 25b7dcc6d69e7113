"""Presets of language models that act: each is the published variant its name says, and runs."""

from pathlib import Path

import pytest

import llmrl.conf
from experiments import compose, only_run_folder, silent_run
from llmrl.experiment.parts import check_values
from llmrl.llms.local.small import make_small_model
from llmrl.run.status import read_status

FOLDER = Path(llmrl.conf.__file__).parent / "experiment" / "grounding"
# Weights, what gives the actions, what is tuned.
PUBLISHED = {
    "mixed_gflan": ("pretrained", "scores", "full"),
    "mixed_gflan_lora": ("pretrained", "scores", "lora"),
    "mixed_aflan": ("pretrained", "head", "full"),
    "mixed_npae": ("embeddings", "head", "full"),
    "mixed_npa": ("random", "head", "full"),
    "mixed_npe": ("embeddings", "scores", "full"),
    "mixed_zero_shot": ("pretrained", "scores", "nothing"),
}
SMALL = ("goto_red_ball_llm", "goto_local_llm")
TINY = (
    "env.n_envs=2",
    "env.history=1",
    "agent.head_hidden=[8]",
    "learn.env_steps=8",
    "learn.rollout_steps=4",
    "learn.evaluate_episodes=2",
    "play.episodes=2",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    texts = ["Goal of the agent: go to the red ball", "turn left, turn right, go forward, pick up, drop, toggle"]
    made = {}
    for kind in ("seq2seq", "causal"):
        made[kind] = tmp_path_factory.mktemp("models") / kind
        make_small_model(made[kind], texts, kind, width=16, layers=1, heads=2, vocabulary=300, longest=4096)
    return made


def test_every_preset_is_one_of_these_or_of_the_baselines():
    names = {path.stem for path in FOLDER.glob("*.yaml")}
    llm = {name for name in names if compose(f"experiment=grounding/{name}")["agent"].get("tune") is not None}
    assert llm == {*PUBLISHED, *SMALL}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_published_variant_is_what_it_says(preset):
    config = compose(f"experiment=grounding/{preset}")
    check_values(config)
    assert (config["llm"]["weights"], config["agent"]["actions"], config["agent"]["tune"]) == PUBLISHED[preset]
    assert config["llm"]["model"] == "google/flan-t5-large"
    ppo = config["agent"]["ppo"]
    assert (ppo["gamma"], ppo["gae_lambda"], ppo["epochs"], ppo["minibatch_size"]) == (0.99, 0.99, 4, 64)
    assert (ppo["clip"], ppo["value_clip"], ppo["entropy_coefficient"], ppo["adam_eps"]) == (0.2, 0.2, 0.01, 1e-5)
    assert ppo["value_coefficient"] == 1.0  # of half the squared error
    assert ppo["learning_rate"] == (1e-4 if preset.endswith("lora") else 1e-6)
    assert (config["env"]["n_envs"], config["env"]["history"], config["env"]["reward_scale"]) == (32, 3, 20.0)
    assert (config["learn"]["rollout_steps"], config["learn"]["env_steps"]) == (40, 1_500_000)


@pytest.mark.parametrize("preset", [*PUBLISHED, *SMALL])
def test_it_runs(preset, tmp_path, models):
    kind = "causal" if preset in SMALL else "seq2seq"
    overrides = (f"experiment=grounding/{preset}", *TINY, f"llm.model={models[kind]}")
    silent_run(*overrides, f"output_root={tmp_path}")
    assert read_status(only_run_folder(tmp_path)).state == "finished"
