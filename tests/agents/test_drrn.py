import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from corridor import Corridor
from experiments import compose, find_run_folder, run
from llmrl.agents.drrn_agent import DRRNAgent, DRRNSettings
from llmrl.algorithms.q_learning import QLearning, QSettings, Transitions
from llmrl.core.errors import ConfigError, Diverged
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ContinuousActions
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.loops.learn import LearnLoop
from llmrl.networks.drrn import DRRN, UNKNOWN, Vocabulary, pad_texts
from llmrl.rollout.collector import Collector
from llmrl.run.checkpoints import CheckpointStore

QUICK = QSettings(
    learning_rate=2e-3,
    gamma=0.9,
    batch_size=32,
    updates_per_step=1.0,
    capacity=3000,
    warmup=64,
    target_update_interval=25,
    huber=1.0,
    max_grad_norm=5.0,
    bootstrap_truncation=True,
)


SMALL = DRRNSettings("prompt", 8, 50, 1.0, QUICK)


def drrn(env, units=32, vocabulary=100, temperature=0.05, **changes):
    return DRRNAgent(
        env.spec, DRRNSettings("prompt", units, vocabulary, temperature, replace(QUICK, **changes)), Seeds(0), "cpu"
    )


class Learner:
    """An agent in a corridor, driven like in the learning loop."""

    def __init__(self, steps=8, env=None, **changes):
        self.env = env or Corridor(n_envs=8)
        self.agent, self.steps, self.iteration = drrn(self.env, **changes), steps, 0
        self.collector = Collector(self.env, self.agent.policy, "cpu")
        self.collector.reset(0)

    def iterate(self):
        seeds = Seeds(0).child(self.iteration)
        self.iteration += 1
        rollout = self.collector.collect(self.steps, seeds.torch("actions"))
        return rollout, self.agent.update(rollout, seeds.torch("minibatches"))

    def state(self):
        return {"agent": self.agent.state_dict(), "collector": self.collector.state_dict()}

    def load(self, state):
        self.agent.load_state_dict(state["agent"])
        self.collector.load_state_dict(state["collector"])


def states_equal(p, q):
    if isinstance(p, dict):
        return p.keys() == q.keys() and all(states_equal(p[key], q[key]) for key in p)
    if isinstance(p, list | tuple):
        return len(p) == len(q) and all(map(states_equal, p, q))
    if isinstance(p, torch.Tensor | np.ndarray):
        return p.shape == q.shape and bool((p == q).all())
    return p == q


@pytest.mark.slow
def test_agent_solves_text_corridor():
    learner = Learner()
    for _ in range(35):
        rollout, _ = learner.iterate()
    wins = [episode.summaries["won"] for episode in rollout.episodes]
    assert len(wins) > 10 and np.mean(wins) > 0.95


def test_network_size_matches_publication():
    network = DRRN(8000, 128, Seeds(0).torch("weights"))
    assert sum(p.numel() for p in network.parameters()) == 1_255_169


def test_padding_has_no_effect():
    words, network = Vocabulary(50), DRRN(50, 16, Seeds(0).torch("weights"))
    actions = pad_texts([words.encode("go east"), words.encode("stay")])
    texts = [words.encode(text) for text in ("go to the ball now", "go to the box", "go to", "the ball")]

    def compute(*batches):
        network.zero_grad()
        outputs = torch.cat([network(pad_texts(batch), actions) for batch in batches])
        outputs.sum().backward()
        return outputs, network.embedding.weight.grad.clone()

    outputs, gradient = compute(texts)
    expected_outputs, expected_gradient = compute(*([text] for text in texts))
    assert torch.allclose(outputs, expected_outputs, atol=1e-6)
    assert torch.allclose(gradient, expected_gradient, atol=1e-5)
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-4)


def test_vocabulary_grows_to_capacity():
    words = Vocabulary(6)
    row = words.encode("You see: a box 12 steps away, YOU see")
    assert np.frombuffer(row, np.int16).tolist() == [2, 3, 4, 5, UNKNOWN, UNKNOWN, UNKNOWN, 2, 3]
    assert words.state_dict() == ["you", "see", "a", "box"]
    assert np.frombuffer(words.encode(" ... "), np.int16).tolist() == [UNKNOWN]
    vocabulary_copy = Vocabulary(6)
    vocabulary_copy.load_state_dict(words.state_dict())
    assert vocabulary_copy.encode("a box") == words.encode("a box")


def test_evaluation_words_are_discarded():
    words = Vocabulary(50)
    words.encode("ball box")
    words.commit()
    first = words.encode("dax xolo")
    words.roll_back()
    assert words.state_dict() == ["ball", "box"] and words.encode("afze wug") == first


@pytest.mark.slow
def test_resume_reproduces_training(tmp_path):
    reference, stopped = Learner(), Learner()
    for _ in range(6):
        reference.iterate()
        stopped.iterate()
    store = CheckpointStore(tmp_path)
    store.save(6, stopped.state())
    restart = Learner()
    restart.load(store.load_newest()[1])
    restart.iteration = 6
    for _ in range(6):
        assert reference.iterate()[1] == restart.iterate()[1]
    assert states_equal(reference.state(), restart.state())


def test_fresh_agent_is_restorable(tmp_path):
    store, restart = CheckpointStore(tmp_path), Learner()
    store.save(0, Learner().state())
    restart.load(store.load_newest()[1])
    assert states_equal(restart.iterate()[1], Learner().iterate()[1])


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "expected"), [(0.25, 10), (1.0, 40), (2.5, 100)])
def test_gradient_steps_follow_environment_steps(ratio, expected):
    learner = Learner(steps=5, updates_per_step=ratio, warmup=1)
    update_count = sum(learner.iterate()[1]["loss/updates"] for _ in range(8))
    assert update_count == expected == learner.agent.state_dict()["learner"]["updates"]


def test_gradient_steps_wait_for_minimum_memory():
    learner = Learner(steps=2, warmup=40)
    assert [learner.iterate()[1].get("loss/updates", 0) for _ in range(4)] == [0, 0, 2, 2]


@pytest.mark.parametrize("bootstrap", [True, False])
def test_transitions_contain_next_observation(bootstrap):
    """Check each transition: every text states the position in its game."""
    env = Corridor(n_envs=6, length=9, horizon=3, names=("go east", "go west", "wait"), mask=True)
    learner = Learner(steps=7, env=env, bootstrap_truncation=bootstrap, warmup=10**6)
    rollouts = [learner.iterate()[0].copy() for _ in range(3)]
    replay = learner.agent._learner.replay_buffer
    words = {i + 2: word for i, word in enumerate(learner.agent.policy.vocabulary.state_dict())}

    def place(row):
        read = [words[i] for i in np.frombuffer(row, np.int16)]
        return read[5], int(read[-3])

    prompts = [text for r in rollouts for text in np.array(r.observation["prompt"].tolist()).ravel()]
    truncated = np.concatenate([r.truncated.numpy().ravel() for r in rollouts])
    terminated = np.concatenate([r.terminated.numpy().ravel() for r in rollouts])
    action = np.concatenate([r.action.numpy().ravel() for r in rollouts])
    assert truncated.sum() > 10
    columns = replay._columns
    for i in range(len(prompts)):
        assert columns["prompt"][i] == learner.agent.policy.vocabulary.encode(prompts[i])
        goal, place_before = place(columns["prompt"][i])
        next_place = place(columns["next_prompt"][i])
        # Not the first state of the next episode, which has another goal, or is in the middle.
        assert next_place == (goal, place_before + (1, -1)[action[i]])
        assert columns["terminal"][i] == (terminated[i] or (truncated[i] and not bootstrap))
    assert columns["next_action_mask"][: len(replay)].tolist() == [[True, True, False]] * len(prompts)
    assert set(action) == {0, 1}


def test_target_adds_discounted_next_value():
    words, network = Vocabulary(50), DRRN(50, 8, Seeds(0).torch("weights"))
    learner = QLearning(network, replace(QUICK, target_update_interval=None))
    actions = pad_texts([words.encode("go east"), words.encode("go west")])
    word, phrase = words.encode("here"), words.encode("there it is")
    q = network(pad_texts([phrase]), actions)[0].detach()
    legal = np.array([[True, True], [True, True], [q[0] < q[1], q[0] >= q[1]]])
    batch = Transitions(
        [word] * 3, np.zeros(3, np.int64), np.ones(3, np.float32), [phrase] * 3, np.array([False, True, False]), legal
    )
    targets = learner._compute_targets(batch, actions)
    expected = torch.stack([1 + 0.9 * q.max(), torch.tensor(1.0), 1 + 0.9 * q.min()])
    assert torch.allclose(targets, expected, atol=1e-6)


def test_targets_use_target_network():
    learner = Learner(steps=1, target_update_interval=3, warmup=1)
    target = learner.agent._learner.target_network

    def equal():
        return states_equal(dict(target.state_dict()), dict(learner.agent.policy.network.state_dict()))

    assert [(learner.iterate(), equal())[1] for _ in range(6)] == [False, False, True, False, False, True]


def test_non_finite_weights_end_run():
    learner = Learner(warmup=1, learning_rate=1e30)
    with pytest.raises(Diverged, match=r"nan.*agent\.q\.learning_rate"):
        for _ in range(3):
            learner.iterate()
    assert not all(x.isfinite().all() for x in learner.agent.policy.network.parameters())


def test_agent_accepts_new_actions():
    learner = Learner()
    learner.iterate()
    vocabulary_state = learner.agent.policy.vocabulary.state_dict()
    learner.agent.policy.vocabulary.encode("dax")
    new_game = Corridor(n_envs=3, names=("walk east", "walk west", "dance"))
    learner.agent.adapt(new_game.spec)
    collector = Collector(new_game, learner.agent.policy, "cpu")
    collector.reset(1)
    rollout = collector.collect(4, torch.Generator().manual_seed(0), learn=False)
    assert rollout.action.shape == (4, 3, 1)
    assert learner.agent.policy.vocabulary.state_dict() == [*vocabulary_state, "walk", "dance"]


def test_reset_restores_initial_state():
    learner = Learner()
    initial_state = learner.agent.state_dict()
    initial_state["policy"] = {name: x.clone() for name, x in initial_state["policy"].items()}
    for _ in range(3):
        learner.iterate()
    assert not states_equal(initial_state["policy"], learner.agent.state_dict()["policy"])
    learner.agent.reset()
    assert states_equal(initial_state, learner.agent.state_dict())


def test_rejects_unsupported_games():
    env = Corridor()
    numbers = ContinuousActions(("speed",), (0.0,), (1.0,))
    with pytest.raises(ConfigError, match=r"agent=drrn.*\(speed\)"):
        DRRNAgent(replace(env.spec, continuous_actions=numbers, n_actions=0), SMALL, Seeds(0), "cpu")
    with pytest.raises(ConfigError, match=r"agent.text_channel=text:.*agent.text_channel=prompt"):
        DRRNAgent(env.spec, replace(SMALL, text_channel="text"), Seeds(0), "cpu")
    mute = replace(env.spec, observation={"number": env.spec.observation["number"]})
    with pytest.raises(ConfigError, match=r"agent.text_channel=prompt:.*env=babyai_text"):
        DRRNAgent(mute, SMALL, Seeds(0), "cpu")


@pytest.mark.parametrize("game", ["nim", "escape_room"])
def test_agent_reads_any_text_environment(tmp_path, game):
    small = ("env.n_envs=2", "learn.env_steps=8", "learn.rollout_steps=4", "learn.evaluate_episodes=1")
    quick = ("agent.q.warmup=0", "agent.q.batch_size=2", "agent.units=8", "agent.text_channel=text")
    run(f"env={game}", "agent=drrn", *small, *quick, f"output_root={tmp_path}")
    summary = json.loads((find_run_folder(tmp_path) / "status.json").read_text())
    assert summary["state"] == "finished"


STUDIES = {"goto_red_ball drrn": 1.0, "goto_local drrn": 1.0, "mixed drrn": 1.0, "mixed drrn_published": 0.25}


@pytest.mark.parametrize("choice", STUDIES)
def test_treatments_build(choice):
    study, treatment = choice.split()
    config = compose(f"experiment=grounding/{study}", f"treatment={treatment}", "env.n_envs=2")
    check_values(config)
    is_published = treatment.endswith("published")
    assert (config["env"]["kind"], config["env"]["sampling"]) == (
        ("legacy", "rejection") if is_published else ("per_episode", "direct")
    )
    parts = build_parts(config, None)
    try:
        loop = build_loop(config, parts)
        assert isinstance(loop, LearnLoop) and loop.rollout_steps == 4
        settings = parts.agents[0]._q_settings
        assert settings.updates_per_step == STUDIES[choice] and settings.bootstrap_truncation != is_published
        assert (settings.target_update_interval is None) == is_published
        collector = loop.collector
        collector.reset(0)
        rollout = collector.collect(2, torch.Generator().manual_seed(0))
        assert parts.agents[0].update(rollout, torch.Generator())["replay/transitions"] == 4
    finally:
        parts.close()
