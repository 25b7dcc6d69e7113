import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from corridor import Corridor
from experiments import compose, only_run_folder, run
from llmrl.agents.drrn_agent import DRRNAgent
from llmrl.algorithms.q_learning import QLearning, QSettings, Transitions
from llmrl.core.errors import ConfigError, Diverged
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ContinuousActions
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.loops.learn import LearnLoop
from llmrl.networks.drrn import DRRN, last_states
from llmrl.networks.vocabulary import UNKNOWN, Vocabulary, padded
from llmrl.rollout.collector import Collector
from llmrl.run.checkpoints import CheckpointStore

QUICK = QSettings(
    learning_rate=2e-3,
    gamma=0.9,
    batch_size=32,
    updates_per_step=1.0,
    capacity=3000,
    warmup=64,
    target_every=25,
    huber=1.0,
    max_grad_norm=5.0,
    bootstrap_truncation=True,
)


def drrn(env, units=32, vocabulary=100, temperature=0.05, **changes):
    return DRRNAgent(env.spec, Seeds(0), "cpu", "prompt", units, vocabulary, temperature, replace(QUICK, **changes))


class Learner:
    """An agent in a corridor, as the learning loop drives it."""

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


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor | np.ndarray):
        return a.shape == b.shape and bool((a == b).all())
    return a == b


@pytest.mark.slow
def test_it_solves_a_corridor_in_words():
    learner = Learner()
    for _ in range(35):
        rollout, _ = learner.iterate()
    won = [episode.summaries["won"] for episode in rollout.episodes]
    assert len(won) > 10 and np.mean(won) > 0.95


def test_it_is_as_large_as_the_published_network():
    network = DRRN(8000, 128, Seeds(0).torch("weights"))
    assert sum(p.numel() for p in network.parameters()) == 1_255_169


def test_what_all_prompts_begin_with_changes_nothing():
    words, network = Vocabulary(50), DRRN(50, 16, Seeds(0).torch("weights"))
    actions = padded([words.read("go east"), words.read("stay")])
    texts = ["go to the ball now", "go to the box", "go to", "the ball"]
    together = network(padded([words.read(text) for text in texts[:3]]), actions)
    mixed = network(padded([words.read(text) for text in texts]), actions)
    alone = torch.cat([network(padded([words.read(text)]), actions) for text in texts])
    assert torch.allclose(together, alone[:3], atol=1e-6) and torch.allclose(mixed, alone, atol=1e-6)
    assert not torch.allclose(alone[0], alone[1], atol=1e-4)
    together.sum().backward()
    shared = network.embedding.weight.grad.clone()
    network.zero_grad()
    alone = torch.cat([network(padded([words.read(text)]), actions) for text in texts[:3]])
    alone.sum().backward()
    assert torch.allclose(shared, network.embedding.weight.grad, atol=1e-5)


def test_texts_are_read_as_torch_reads_them():
    torch.manual_seed(0)
    reader, vectors = nn.GRU(6, 6, batch_first=True).double(), torch.randn(20, 6, dtype=torch.float64)
    vectors.requires_grad_()
    for shared in (0, 3, 4):
        words, lengths = torch.randint(0, 20, (6, 9)), torch.tensor([5, 9, 4, 7, 9, 5])
        words[:, :shared] = words[0, :shared]
        found = last_states(reader, vectors, words, lengths)
        expected = torch.cat([reader(vectors[row[None, :n]])[1][0] for row, n in zip(words, lengths, strict=True)])
        assert torch.allclose(found, expected, atol=1e-12)
        weights, trained = torch.randn(6, 6, dtype=torch.float64), [vectors, *reader.parameters()]
        ours, theirs = (torch.autograd.grad((x * weights).sum(), trained) for x in (found, expected))
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(ours, theirs, strict=True))


def test_words_are_numbered_as_they_are_met_until_the_table_is_full():
    words = Vocabulary(6)
    row = words.read("You see: a box 12 steps away, YOU see")
    assert np.frombuffer(row, np.int16).tolist() == [2, 3, 4, 5, UNKNOWN, UNKNOWN, UNKNOWN, 2, 3]
    assert words.state_dict() == ["you", "see", "a", "box"]
    assert np.frombuffer(words.read(" ... "), np.int16).tolist() == [UNKNOWN]
    again = Vocabulary(6)
    again.load_state_dict(words.state_dict())
    assert again.read("a box") == words.read("a box")


def test_words_of_a_test_are_forgotten_after_it():
    words = Vocabulary(50)
    words.read("ball box")
    words.keep()
    first = words.read("dax xolo")
    words.forget()
    assert words.state_dict() == ["ball", "box"] and words.read("afze wug") == first


@pytest.mark.slow
def test_stopped_and_resumed_it_learns_the_same(tmp_path):
    whole, stopped = Learner(), Learner()
    for _ in range(6):
        whole.iterate()
        stopped.iterate()
    store = CheckpointStore(tmp_path)
    store.save(6, stopped.state())
    resumed = Learner()
    resumed.load(store.load_newest()[1])
    resumed.iteration = 6
    for _ in range(6):
        assert whole.iterate()[1] == resumed.iterate()[1]
    assert same(whole.state(), resumed.state())


def test_an_agent_that_has_learned_nothing_yet_is_restored(tmp_path):
    store, resumed = CheckpointStore(tmp_path), Learner()
    store.save(0, Learner().state())
    resumed.load(store.load_newest()[1])
    assert same(resumed.iterate()[1], Learner().iterate()[1])


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "expected"), [(0.25, 10), (1.0, 40), (2.5, 100)])
def test_gradient_steps_per_step_of_the_games(ratio, expected):
    learner = Learner(steps=5, updates_per_step=ratio, warmup=1)
    made = sum(learner.iterate()[1]["loss/updates"] for _ in range(8))
    assert made == expected == learner.agent.state_dict()["learner"]["updates"]


def test_there_is_no_gradient_step_before_there_is_enough_to_draw_from():
    learner = Learner(steps=2, warmup=40)
    assert [learner.iterate()[1].get("loss/updates", 0) for _ in range(4)] == [0, 0, 2, 2]


@pytest.mark.parametrize("bootstrap", [True, False])
def test_transitions_are_what_was_seen_and_what_it_led_to(bootstrap):
    """Each text says where its game stands, so what follows what can be checked one by one."""
    env = Corridor(n_envs=6, length=9, horizon=3, names=("go east", "go west", "wait"), mask=True)
    learner = Learner(steps=7, env=env, bootstrap_truncation=bootstrap, warmup=10**6)
    rollouts = [learner.iterate()[0].copy() for _ in range(3)]
    kept = learner.agent._learner.replay
    words = {i + 2: word for i, word in enumerate(learner.agent.policy.words.state_dict())}

    def place(row):
        read = [words[i] for i in np.frombuffer(row, np.int16)]
        return read[5], int(read[-3])

    seen = [text for r in rollouts for text in np.array(r.observation["prompt"].tolist()).ravel()]
    truncated = np.concatenate([r.truncated.numpy().ravel() for r in rollouts])
    terminated = np.concatenate([r.terminated.numpy().ravel() for r in rollouts])
    action = np.concatenate([r.action.numpy().ravel() for r in rollouts])
    assert truncated.sum() > 10
    columns = kept.state_dict()["columns"]
    texts = kept._texts
    for i in range(len(seen)):
        assert texts[columns["prompt"][i]] == learner.agent.policy.words.read(seen[i])
        goal, before = place(texts[columns["prompt"][i]])
        reached = place(texts[columns["next_prompt"][i]])
        # Not the first state of the next episode, which has another goal, or is in the middle.
        assert reached == (goal, before + (1, -1)[action[i]])
        assert columns["terminal"][i] == (terminated[i] or (truncated[i] and not bootstrap))
    assert columns["legal"].tolist() == [[True, True, False]] * len(seen)
    assert set(action) == {0, 1}


def test_the_target_is_the_reward_and_what_may_still_come():
    words, network = Vocabulary(50), DRRN(50, 8, Seeds(0).torch("weights"))
    learner = QLearning(network, replace(QUICK, target_every=None))
    actions = padded([words.read("go east"), words.read("go west")])
    here, there = words.read("here"), words.read("there it is")
    q = network(padded([there]), actions)[0].detach()
    legal = np.array([[True, True], [True, True], [q[0] < q[1], q[0] >= q[1]]])
    batch = Transitions(
        [here] * 3, np.zeros(3, np.int64), np.ones(3, np.float32), [there] * 3, np.array([False, True, False]), legal
    )
    targets = learner._targets(batch, actions)
    expected = torch.stack([1 + 0.9 * q.max(), torch.tensor(1.0), 1 + 0.9 * q.min()])
    assert torch.allclose(targets, expected, atol=1e-6)


def test_targets_come_from_an_older_copy_of_the_network():
    learner = Learner(steps=1, target_every=3, warmup=1)
    target = learner.agent._learner.target

    def equal():
        return same(dict(target.state_dict()), dict(learner.agent.policy.network.state_dict()))

    assert [(learner.iterate(), equal())[1] for _ in range(6)] == [False, False, True, False, False, True]


def test_weights_that_are_no_numbers_any_more_end_it():
    learner = Learner(warmup=1, learning_rate=1e30)
    with pytest.raises(Diverged, match=r"gradient step \d+: .* no number any more .*smaller agent.q.learning_rate"):
        for _ in range(3):
            learner.iterate()
    assert not all(x.isfinite().all() for x in learner.agent.policy.network.parameters())


def test_it_plays_other_words_and_more_actions():
    learner = Learner()
    learner.iterate()
    known = learner.agent.policy.words.state_dict()
    learner.agent.policy.words.read("dax")
    other = Corridor(n_envs=3, names=("walk east", "walk west", "dance"))
    learner.agent.adapt(other.spec)
    collector = Collector(other, learner.agent.policy, "cpu")
    collector.reset(1)
    rollout = collector.collect(4, torch.Generator().manual_seed(0), learn=False)
    assert rollout.action.shape == (4, 3, 1)
    assert learner.agent.policy.words.state_dict() == [*known, "walk", "dance"]


def test_reset_is_the_very_beginning():
    learner = Learner()
    before = learner.agent.state_dict()
    before["policy"] = {name: x.clone() for name, x in before["policy"].items()}
    for _ in range(3):
        learner.iterate()
    assert not same(before["policy"], learner.agent.state_dict()["policy"])
    learner.agent.reset()
    assert same(before, learner.agent.state_dict())


def test_games_it_cannot_play_are_refused():
    env = Corridor()
    numbers = ContinuousActions(("speed",), (0.0,), (1.0,))
    with pytest.raises(ConfigError, match="agent=drrn chooses one of several actions"):
        DRRNAgent(
            replace(env.spec, continuous_actions=numbers, n_actions=0), Seeds(0), "cpu", "prompt", 8, 50, 1.0, QUICK
        )
    with pytest.raises(
        ConfigError, match=r"agent.text_channel=text: .* offers the texts prompt; use agent.text_channel=prompt"
    ):
        DRRNAgent(env.spec, Seeds(0), "cpu", "text", 8, 50, 1.0, QUICK)
    mute = replace(env.spec, observation={"number": env.spec.observation["number"]})
    with pytest.raises(ConfigError, match="offers no texts; use an environment of texts"):
        DRRNAgent(mute, Seeds(0), "cpu", "prompt", 8, 50, 1.0, QUICK)


@pytest.mark.parametrize("game", ["nim", "escape_room"])
def test_it_reads_any_environment_that_has_words(tmp_path, game):
    small = ("env.n_envs=2", "learn.env_steps=8", "learn.rollout_steps=4", "learn.evaluate_episodes=1")
    quick = ("agent.q.warmup=0", "agent.q.batch_size=2", "agent.units=8", "agent.text_channel=text")
    run(f"env={game}", "agent=drrn", *small, *quick, f"output_root={tmp_path}")
    summary = json.loads((only_run_folder(tmp_path) / "status.json").read_text())
    assert summary["state"] == "finished"


STUDIES = {"goto_red_ball drrn": 1.0, "goto_local drrn": 1.0, "mixed drrn": 1.0, "mixed drrn_published": 0.25}


@pytest.mark.parametrize("chosen", STUDIES)
def test_its_treatments_build(chosen):
    study, treatment = chosen.split()
    config = compose(f"experiment=grounding/{study}", f"treatment={treatment}", "env.n_envs=2")
    check_values(config)
    published = treatment.endswith("published")
    assert (config["env"]["kind"], config["env"]["sampling"]) == (
        ("legacy", "rejection") if published else ("per_episode", "direct")
    )
    parts = build_parts(config, None)
    try:
        loop = build_loop(config, parts)
        assert isinstance(loop, LearnLoop) and loop.rollout_steps == 4
        settings = parts.agents[0]._settings
        assert settings.updates_per_step == STUDIES[chosen] and settings.bootstrap_truncation != published
        assert (settings.target_every is None) == published
        collector = loop.collector
        collector.reset(0)
        rollout = collector.collect(2, torch.Generator().manual_seed(0))
        assert parts.agents[0].update(rollout, torch.Generator())["replay/transitions"] == 4
    finally:
        parts.close()
