"""Treatments of acting language models: agreement with published variants, and runs."""

import pytest

from experiments import compose, find_run_folder, run_silently
from llmrl.config.treatments import list_studies_by_treatment
from llmrl.experiment.parts import check_values
from llmrl.llms.local.small import SmallModelShape, make_small_model
from llmrl.run.status import read_status
from some import mark_long_except_every

# Weights, what gives the actions, what is tuned.
PAPER_VARIANTS = {
    "gflan": ("pretrained", "scores", "full"),
    "gflan_lora": ("pretrained", "scores", "lora"),
    "aflan": ("pretrained", "head", "full"),
    "npae": ("embeddings", "head", "full"),
    "npa": ("random", "head", "full"),
    "npe": ("embeddings", "scores", "full"),
    "zero_shot": ("pretrained", "scores", "nothing"),
}
SMALL = ("goto_red_ball", "goto_local")
SMALL_MODELS = {"small_llm", "small_llm_words", "small_llm_meaningless", "small_llm_read"}
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
    folder = tmp_path_factory.mktemp("models") / "seq2seq"
    make_small_model(
        folder, texts, "seq2seq", shape=SmallModelShape(width=16, layers=1, heads=2, vocabulary=300, longest=4096)
    )
    return folder


@pytest.mark.long
@pytest.mark.slow
def test_treatments_have_presets():
    placeholders = ("agent.data=there", "llm.model=there")
    for study, treatments_ in (("mixed", {*PAPER_VARIANTS}), ("goto_local", SMALL_MODELS)):
        fits = [name for name, studies in list_studies_by_treatment().items() if f"grounding/{study}" in studies]
        agents = {}
        for name in fits:
            words = placeholders if name == "bc" else placeholders[:1] if name == "small_bc" else ()
            agents[name] = compose(f"experiment=grounding/{study}", f"treatment={name}", *words)["agent"]
        assert {name for name, agent in agents.items() if agent.get("tune") is not None} == treatments_


@pytest.mark.slow
@pytest.mark.parametrize("treatment", PAPER_VARIANTS)
def test_paper_variants_match_settings(treatment):
    config = compose("experiment=grounding/mixed", f"treatment={treatment}")
    check_values(config)
    assert (config["llm"]["weights"], config["agent"]["actions"], config["agent"]["tune"]) == PAPER_VARIANTS[treatment]
    assert config["llm"]["model"] == "google/flan-t5-large"
    ppo = config["agent"]["ppo"]
    assert (ppo["gamma"], ppo["gae_lambda"], ppo["epochs"], ppo["minibatch_size"]) == (0.99, 0.99, 4, 64)
    assert (ppo["clip"], ppo["value_clip"], ppo["entropy_coefficient"], ppo["adam_eps"]) == (0.2, 0.2, 0.01, 1e-5)
    assert ppo["value_coefficient"] == 1.0  # of half the squared error
    assert ppo["learning_rate"] == (1e-4 if treatment.endswith("lora") else 1e-6)
    assert (config["env"]["n_envs"], config["env"]["history"], config["env"]["reward_scale"]) == (32, 3, 20.0)
    assert (config["learn"]["rollout_steps"], config["learn"]["env_steps"]) == (40, 1_500_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "treatment"),
    mark_long_except_every(
        11,
        [
            *(("mixed", name) for name in PAPER_VARIANTS),
            *((world, name) for world in SMALL for name in sorted(SMALL_MODELS)),
        ],
    ),
)
def test_treatment_runs(study, treatment, tmp_path, models):
    model = f"llm.model={models}"
    if treatment in SMALL_MODELS:
        model = (
            "llm.make={width: 16, layers: 1, heads: 2, vocabulary: 300, longest: 4096, stories: 50, "
            "pretraining_steps: 2}"
        )
    overrides = (f"experiment=grounding/{study}", f"treatment={treatment}", *TINY, model)
    run_silently(*overrides, f"output_root={tmp_path}")
    assert read_status(find_run_folder(tmp_path)).state == "finished"
