"""The FiLM network, which combines a map with a mission, and its training with PPO."""

import copy
from dataclasses import replace

import pytest
import torch

from experiments import compose
from fetch_game import FetchGame
from llmrl.agents.ppo_agent import PPOAgent, PPOAgentSettings
from llmrl.algorithms.ppo import PPOSettings
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.experiment.resources import RunResources
from llmrl.loops.learn import LearnLoop
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.spatial_cores import FilmCore, FilmSettings
from llmrl.rollout.collector import Collector

CODES = (11, 6, 3)
SPEC = EnvSpec(
    name="told",
    n_envs=3,
    n_agents=1,
    observation={
        "view": Channel((7, 7, 3), "uint8", codes=CODES),
        "mission": Channel((24,), "int64", codes=(100,)),
        "prompt": Channel((), "object"),
        "expert": Channel((), "int64"),
    },
    n_actions=6,
    action_names=("turn left", "turn right", "go forward", "pick up", "drop", "toggle"),
    horizon=64,
)
SETTINGS = {
    "learning_rate": 3e-3, "adam_eps": 1e-5, "gamma": 0.99, "gae_lambda": 0.95, "epochs": 2, "minibatch_size": 32,
    "clip": 0.2, "value_clip": 0.2, "normalize_advantage": True, "entropy_coefficient": 0.01,
    "value_coefficient": 0.5, "max_grad_norm": 0.5, "target_kl": None, "bootstrap_truncation": True,
}  # fmt: skip
AGENT = {
    "share_parameters": True, "observation_channels": ["view"], "core": "film",
    "encoding": "onehot", "core_hidden": [], "head_hidden": [16], "memory_layers": 1, "critic": "own",
    "freeze": "none", "init_from": None, "init_parts": "all", "keep_optimizer": False,
}  # fmt: skip


def core(width=16, codes=CODES, **settings):
    return FilmCore((7, 7, 3), codes, 100, width, FilmSettings(**settings), Seeds(0).torch("weights"))


def make_inputs(n, seed=0):
    """Return maps [n, 7, 7, 3] and instructions of 1 to 24 words [n, 24]."""
    generator = Seeds(seed).torch("seen")
    view = torch.stack([torch.randint(k, (n, 7, 7), generator=generator) for k in CODES], -1).to(torch.uint8)
    words = torch.randint(2, 100, (n, 24), generator=generator)
    mask_end = torch.randint(1, 25, (n, 1), generator=generator)
    return view, torch.where(torch.arange(24) < mask_end, words, 0)


def agent(spec, features=16, memory=16, seed=0, normalization="none", **changes):
    settings = PPOAgentSettings(
        **AGENT,
        features=features,
        memory=memory,
        ppo=PPOSettings(**(SETTINGS | changes)),
        film=FilmSettings(normalization=normalization),
    )
    return PPOAgent(spec, settings, Seeds(seed), "cpu", has_principal=False)


def learn(learner, game, updates, start=0):
    """Return the metrics of the last update and the success rate of the last 5 rollouts."""
    collector = Collector(game, learner.policy, "cpu")
    collector.reset(start)
    wins = []
    for i in range(start, start + updates):
        rollout = collector.collect(8, Seeds(1).child(i).torch("actions"))
        metrics = learner.update(rollout, Seeds(1).child(i).torch("minibatches"))
        wins += [(i, episode.summaries["won"]) for episode in rollout.episodes]
    last = [x for i, x in wins if i >= start + updates - 5]
    return metrics, sum(last) / max(len(last), 1)


@pytest.mark.parametrize("normalization", ["none", "group", "batch"])
@pytest.mark.parametrize(("output", "n_features"), [("map", 64), ("maximum", 16)])
@pytest.mark.parametrize("codes", [CODES, ()])
def test_shapes_and_gradients(normalization, output, n_features, codes):
    net = core(codes=codes, normalization=normalization, output=output, blocks=3)
    features = net(*make_inputs(32))
    assert features.shape == (32, n_features) == (32, net.n_features)
    assert (features >= 0).all() and features.std() > 0
    features.sum().backward()
    unreached = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    # A constant before a normalization by batch is no constant after it.
    assert unreached == [] or normalization == "batch"
    assert all(p.grad is not None for p in net.parameters())


def test_parameter_count_matches_publication():
    """Count 1,068,103 parameters for six actions and 100 words (BabyAI's network in GLAM's experiments)."""
    film = FilmSettings(normalization="batch", output="maximum")
    network = ActorCritic(
        SPEC, Seeds(0).torch("weights"), NetworkSettings(128, [], [64], ["view"], 128, 1, "own", "film", "codes", film)
    )
    assert sum(p.numel() for p in network.parameters()) == 1_068_103


def test_mission_is_read_to_last_word():
    net = core()
    _, words = make_inputs(5)
    embedding = net.encode_instruction(words)
    longer = torch.nn.functional.pad(words, (0, 7))
    torch.testing.assert_close(net.encode_instruction(longer), embedding)
    embedding_a, embedding_b = net.encode_instruction(torch.tensor([[2, 3, 4, 0], [3, 2, 4, 0]]))
    assert (embedding_a - embedding_b).abs().max() > 1e-2
    for row in range(5):  # with others or alone, once or several times
        torch.testing.assert_close(net.encode_instruction(words[row : row + 1])[0], embedding[row])
    torch.testing.assert_close(net.encode_instruction(words[[3, 1, 3, 3]]), embedding[[3, 1, 3, 3]])
    assert net.encode_instruction(torch.zeros(2, 24, dtype=torch.int64)).isfinite().all()


def test_mission_changes_actions():
    view, words = make_inputs(2)
    learner = agent(replace(SPEC, n_envs=2))
    inputs = {"view": view[:1].repeat(2, 1, 1, 1)[:, None], "mission": words[:, None]}
    logits = learner.policy.act(inputs, generator=Seeds(0).torch("a")).logits
    assert (logits[0] - logits[1]).abs().max() > 1e-6
    same_inputs = {**inputs, "mission": words[:1].repeat(2, 1)[:, None]}
    logits = learner.policy.act(same_inputs, generator=Seeds(0).torch("a")).logits
    torch.testing.assert_close(logits[0], logits[1])


def test_actions_follow_seed():
    first_agent, repeated_agent, different_agent = (agent(SPEC, seed=seed) for seed in (0, 0, 1))
    mine, copied = first_agent.policy.state_dict(), repeated_agent.policy.state_dict()
    assert all(torch.equal(mine[name], copied[name]) for name in mine)
    weights = [name for name in mine if name.endswith("weight")]
    assert not any(torch.equal(mine[name], different_agent.policy.state_dict()[name]) for name in weights)


def test_mission_is_not_numeric():
    """Check that other networks ignore the mission and act as an expert would."""
    plain = ActorCritic(SPEC, Seeds(0).torch("weights"), NetworkSettings(8, [], []))
    assert plain.spatial_channel == "view" and plain.vector_channels == ()
    assert agent(SPEC).policy.channels == ("view", "mission")
    with pytest.raises(ConfigError, match=r"agent.observation_channels.*env=told.*'mission'"):
        ActorCritic(SPEC, Seeds(0).torch("weights"), NetworkSettings(8, [], [], ["view", "mission"]))


@pytest.mark.parametrize(
    "channels",
    [
        {"view": SPEC.observation["view"]},
        {"mission": SPEC.observation["mission"], "vector": Channel((4,), "float32")},
        {"mission": SPEC.observation["mission"], "view": Channel((7, 7, 3), "float32")},
        {"mission": SPEC.observation["mission"], "pixels": Channel((64, 64, 3), "uint8")},
    ],
)
def test_missing_map_raises(channels):
    with pytest.raises(ConfigError, match=r"agent.core=film.*env=told.*env=babyai_text"):
        ActorCritic(
            replace(SPEC, observation=channels), Seeds(0).torch("weights"), NetworkSettings(8, [], [], core="film")
        )


def test_map_is_encoded():
    channels = {**SPEC.observation, "vector": Channel((4,), "float32")}
    network = ActorCritic(
        replace(SPEC, observation=channels), Seeds(0).torch("weights"), NetworkSettings(8, [], [], core="film")
    )
    assert (network.spatial_channel, network.vector_channels) == ("view", ("vector",))
    with pytest.raises(ConfigError, match=r"agent.observation_channels=\['vector'\].*'view'"):
        ActorCritic(
            replace(SPEC, observation=channels),
            Seeds(0).torch("weights"),
            NetworkSettings(8, [], [], ["vector"], core="film"),
        )


def test_training_inputs_equal_rollout_inputs():
    """Check that the first minibatch reproduces the rollout's probabilities.

    Normalization does not depend on the batch.
    """
    for normalization, ratios in (("none", 0.0), ("group", 0.0), ("batch", 1e-5)):
        learner = agent(FetchGame(8).spec, normalization=normalization, epochs=1, minibatch_size=None)
        metrics, _ = learn(learner, FetchGame(8), 1)
        assert (abs(metrics["loss/kl"]) < 1e-9) == (ratios == 0.0), normalization


@pytest.mark.long
def test_agent_learns_to_follow_mission():
    """Check against 50 % success, the rate without the mission."""
    learner = agent(FetchGame(16).spec, learning_rate=1e-3, epochs=4)
    _, success = learn(learner, FetchGame(16), 30)
    assert success > 0.9


def test_resume_is_bit_identical():
    learner = agent(FetchGame(8).spec)
    learn(learner, FetchGame(8), 2)
    saved = copy.deepcopy(learner.state_dict())
    expected, _ = learn(learner, FetchGame(8), 2, start=2)
    restart = agent(FetchGame(8).spec, seed=5)
    restart.load_state_dict(saved)
    repeated_losses, _ = learn(restart, FetchGame(8), 2, start=2)
    assert repeated_losses == expected
    mine, restart_state = learner.state_dict()["policy"], restart.state_dict()["policy"]
    assert all(torch.equal(mine[name], restart_state[name]) for name in mine)


STUDIES = {"goto_red_ball symbolic": 1, "goto_local symbolic": 1, "mixed symbolic": 5, "mixed symbolic_published": 5}


@pytest.mark.parametrize("choice", sorted(STUDIES))
def test_treatments_build(choice):
    study, treatment = choice.split()
    config = compose(f"experiment=grounding/{study}", f"treatment={treatment}")
    check_values(config)
    assert config["env"]["n_envs"] * config["learn"]["rollout_steps"] == 2560
    is_published = treatment.endswith("published")
    # Of half the squared error.
    assert config["agent"]["ppo"]["value_coefficient"] == (1.0 if is_published else 0.5)
    config["env"]["n_envs"] = 16
    parts = build_parts(config, RunResources(config, build_used_model).model)
    try:
        loop = build_loop(config, parts)
        assert isinstance(loop, LearnLoop) and parts.agents[0].policy.channels == ("view", "mission")
        [n_words] = parts.env.spec.observation["mission"].codes
        parameter_count = 1_068_103 - 100 * 128 if is_published else None
        n_parameters = parts.agents[0].describe()["parameters"]
        assert parameter_count is None or n_parameters == parameter_count + n_words * 128
        kinds = [name for name in parts.env.spec.metrics if name.startswith("success_")]
        assert len(kinds) in ((1, 2, 3, 4, 5) if is_published else (5 if STUDIES[choice] == 5 else 0,))
    finally:
        parts.close()
