"""Societies computed in one batch: the numbers that each would have alone."""

import copy
import dataclasses
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from llmrl.agents.ppo_agent import PPOAgent
from llmrl.algorithms.societies.batched_trainer import BatchedTrainer
from llmrl.algorithms.societies.partitioned_policy import PartitionedPolicy, split
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, ContinuousActions, EnvSpec
from ppo_settings import PLAIN
from signal_game.parts import AlwaysZero
from some import one_in

SETTINGS = replace(PLAIN, epochs=2, minibatch_size=10, max_grad_norm=0.1)
GAMES, AGENTS, STEPS, ACTIONS = 2, 3, 6, 4
VECTOR = {"vector": Channel((5,), "float32", 0, 1), "mechanism": Channel((2,), "float32", 0, 1)}
CHANNELS = {
    "mlp": VECTOR,
    "grid": {**VECTOR, "grid": Channel((7, 5, 2), "uint8", 0, 3, codes=(4, 3))},
    "pixels": {**VECTOR, "pixels": Channel((36, 36, 3), "uint8", 0, 255)},
    "masked": {**VECTOR, "action_mask": Channel((ACTIONS,), "bool", 0, 1)},
}


NUMBERS = ContinuousActions(("push", "turn", "gear"), (-2.0, -1.0, 0.0), (2.0, 3.0, 4.0), (False, False, True))


def make_spec(kind, n_envs=GAMES):
    names = tuple(f"do_{i}" for i in range(ACTIONS))
    numbers = NUMBERS if kind in ("numbers", "squashed") else None
    return EnvSpec(
        "toy", n_envs, AGENTS, CHANNELS.get(kind, VECTOR), ACTIONS, names, horizon=STEPS, continuous_actions=numbers
    )


def make_agent(kind, seed=0, share=True, freeze="none", teacher=None, own=PPOAgent, memory=None, **changes):
    size = 4 if kind == "pixels" else 10  # of pictures few enough that two networks are convolved at once
    ppo = dataclasses.replace(SETTINGS, **{"minibatch_size": size, **changes})
    return own(
        make_spec(kind),
        Seeds(seed),
        "cpu",
        has_principal=True,
        share_parameters=share,
        observation_channels=None,
        features=16 if kind != "grid" else None,
        core="auto",
        encoding="onehot",
        core_hidden=[8],
        head_hidden=[6] if kind == "mlp" else [],
        memory=memory,
        memory_layers=1,
        critic=kind if kind in ("central", "separate") else "own",
        state_dependent_std=kind == "squashed",
        squash_actions=kind == "squashed",
        freeze=freeze,
        init_from=None,
        init_parts="all",
        keep_optimizer=False,
        ppo=ppo,
        teacher=teacher,
    )


def observations(kind, shape, seed=0):
    rng, found = np.random.default_rng(seed), {}
    for name, channel in make_spec(kind).observation.items():
        high = channel.codes or (2 if channel.dtype == "bool" else 256)
        x = rng.random((*shape, *channel.shape)) if channel.dtype == "float32" else 0
        x = rng.integers(high, size=(*shape, *channel.shape)) if channel.dtype != "float32" else x
        found[name] = torch.as_tensor(x.astype(channel.dtype))
    if "action_mask" in found:
        found["action_mask"][..., 0] = True
    return found


def make_rollout(kind, agents, seed=0):
    """What `agents` side by side would have seen and done, with rewards and ends drawn."""
    rng, n_envs = np.random.default_rng(seed), GAMES * len(agents)
    shape = (STEPS, n_envs, AGENTS)
    seen = observations(kind, shape, seed)
    player = PartitionedPolicy([agent.policy for agent in agents], GAMES)
    acts, state = [], None
    for t in range(STEPS):
        act = player.act({name: x[t] for name, x in seen.items()}, state, Seeds(seed).torch(t))
        state = act.state
        acts.append(act)
    reward, drawn = (torch.as_tensor(rng.normal(size=shape), dtype=torch.float32) for _ in range(2))
    ended = torch.as_tensor(rng.random(shape[:2]) < 0.2)
    return played(seen, acts, reward, 0.1 * drawn.abs(), drawn, ended, state)


def played(seen, acts, reward, shift, reached, ended, state=None):
    """The rollout of some acts; probabilities were lower by `shift`, and values of states `reached` are drawn, too."""
    action, log_prob, value = (torch.stack([getattr(a, n) for a in acts]) for n in ("action", "log_prob", "value"))
    frozen = acts[0].features is not None
    return Rollout(
        observation={n: x for n, x in seen.items() if not frozen or n == "action_mask"},
        features=torch.stack([a.features for a in acts]) if frozen else None,
        action=action,
        log_prob=log_prob - shift,
        value=value,
        reward=reward,
        base_reward=reward,
        terminated=ended,
        truncated=torch.zeros_like(ended),
        episode_start=torch.zeros_like(ended),
        next_value=torch.where(ended[..., None], 0.0, reached),
        info={},
        episodes=[],
        state=None if state is None else torch.zeros_like(state),
    )


def update_both(kind, agents, updates=3):
    """The agents updated together, and copies of them updated one after the other; with the metrics of the last."""
    alone, together = copy.deepcopy(agents), BatchedTrainer(agents)
    for i in range(updates):
        rollout = make_rollout(kind, alone, i)
        # Societies 0 and 1 draw the same, as under two proposals.
        seeds = [Seeds(k // 2).child(i) for k in range(len(agents))]
        found = together.update(rollout, [each.torch("minibatches") for each in seeds])
        parts = zip(alone, split(rollout, len(agents)), seeds, strict=True)
        expected = [agent.update(part, each.torch("minibatches")) for agent, part, each in parts]
    return together, alone, found, expected


def assert_same(agents, others, **tolerance):
    for one, other in zip(agents, others, strict=True):
        mine, theirs = one.state_dict(), other.state_dict()
        assert mine["policy"].keys() == theirs["policy"].keys()
        for name, x in mine["policy"].items():
            torch.testing.assert_close(x, theirs["policy"][name], msg=name, **tolerance)
        optimizers = (x["learner"]["optimizers"] for x in (mine, theirs))
        for own, its in zip(*optimizers, strict=True):
            assert own["state"].keys() == its["state"].keys()
            for key, moments in own["state"].items():
                assert moments["step"] == its["state"][key]["step"]
                torch.testing.assert_close(moments["exp_avg"], its["state"][key]["exp_avg"], **tolerance)
                torch.testing.assert_close(moments["exp_avg_sq"], its["state"][key]["exp_avg_sq"], **tolerance)


KINDS = ("mlp", "grid", "pixels", "masked", "central", "separate", "numbers", "squashed")
CLOSE = {"rtol": 1e-3, "atol": 2e-5}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "share", "societies"), one_in(3, itertools.product(KINDS, [True, False], [1, 3])))
def test_updates_together_are_those_of_each_alone(kind, share, societies):
    agents = [make_agent(kind, seed, share) for seed in range(societies)]
    before = copy.deepcopy(agents)
    together, alone, found, expected = update_both(kind, agents)
    assert together._stacks
    assert_same(agents, alone, **CLOSE)
    for own, its in zip(found, expected, strict=True):
        assert own == pytest.approx(its, rel=1e-3, abs=1e-4)
    for agent, other in zip(agents, before, strict=True):
        for network, old in zip(agent.policy.members, other.policy.members, strict=True):
            moved = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
            assert (moved - torch.nn.utils.parameters_to_vector(old.parameters())).abs().max() > 1e-2


CHANGES = {
    "frozen core": {"freeze": "core"},
    "no critic": {"baseline": "none"},
    "step size that decays": {"final_learning_rate": 1e-4, "decay_updates": 2},
    "policy gradient": {"epochs": 1, "minibatch_size": None, "clip": None, "normalize_advantage": False},
    "full minibatches alone": {"drop_last": True},
    "gradients scaled down apart": {"clip_apart": True},
    "gradients scaled down apart, no critic": {"clip_apart": True, "baseline": "none"},
    "advantages normalised over the rollout": {"normalize_over": "rollout", "advantage_eps": 0.1},
    "advantages normalised in each game": {"normalize_over": "game", "advantage_eps": 0.1},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("share", [True, False])
def test_settings_that_change_what_is_trained(change, share):
    agents = [make_agent("mlp", seed, share, **CHANGES[change]) for seed in range(2)]
    together, alone, found, expected = update_both("mlp", agents)
    assert together._stacks
    if "drop_last" in CHANGES[change]:  # of 36 samples of three agents, or 12 of one, in tens, twice
        assert {own["loss/updates"] for own in found} == {6.0}
    assert_same(agents, alone, **CLOSE)
    assert [sorted(own) for own in found] == [sorted(its) for its in expected]


class OwnUpdate(PPOAgent):
    """An agent whose update is more than its learner's."""

    def update(self, rollout, generator):
        return {**super().update(rollout, generator), "own": 1.0}


ALONE = {
    "memory": {"memory": 4},
    "stop by KL": {"target_kl": 1e-4},
    "normalised values": {"normalize_values": True},
    "ratios of joint actions": {"joint_ratio": True},
    "an update of its own": {"own": OwnUpdate},
    "teacher": {"teacher": True},
}


@pytest.mark.parametrize("reason", ALONE)
def test_what_cannot_be_stacked_updates_one_after_the_other(reason):
    changes = ALONE[reason]
    agents = []
    for seed in range(2):
        taught = {"teacher": AlwaysZero(0.5)} if "teacher" in changes else {}
        agents.append(make_agent("mlp", seed, **{**changes, **taught}))
    together, alone, found, expected = update_both("mlp", agents)
    assert not together._stacks
    assert found == expected
    assert_same(agents, alone, rtol=0, atol=0)


def test_agents_that_stand_elsewhere_are_computed_apart():
    agents = [make_agent("mlp", seed) for seed in range(2)]
    agents[1].update(make_rollout("mlp", agents[1:]), Seeds(0).torch("minibatches"))
    together, alone, _, _ = update_both("mlp", agents)
    assert len(together._stacks) == 2
    assert_same(agents, alone, **CLOSE)
    wider = [make_agent("mlp"), make_agent("grid")]
    assert BatchedTrainer(wider)._learners is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [True, False])
def test_playing_together_is_playing_alone(kind, share):
    agents = [make_agent(kind, seed, share) for seed in range(3)]
    seen = observations(kind, (GAMES * 3, AGENTS))
    side_by_side = PartitionedPolicy([agent.policy for agent in agents], GAMES)
    generators = [Seeds(seed).torch("actions") for seed in (0, 1)]
    generators.append(generators[0])
    for turn in range(2):
        act = side_by_side.act(seen, None, generators)
        values = side_by_side.values(seen)
        for k, agent in enumerate(agents):
            mine = slice(k * GAMES, (k + 1) * GAMES)
            generator = Seeds(k % 2).torch("actions")
            for _ in range(turn + 1):
                expected = agent.policy.act({n: x[mine] for n, x in seen.items()}, None, generator)
            torch.testing.assert_close(act.value[mine], expected.value, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(values[mine], expected.value, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(act.log_prob[mine], expected.log_prob, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(act.entropy[mine], expected.entropy, rtol=1e-4, atol=1e-5)
            if kind in ("numbers", "squashed"):
                torch.testing.assert_close(act.action[mine], expected.action, rtol=1e-4, atol=1e-5)
                assert act.logits is None
                continue
            torch.testing.assert_close(act.logits[mine], expected.logits, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                act.entropy[mine], torch.distributions.Categorical(logits=act.logits[mine]).entropy()
            )
            assert torch.equal(act.action[mine], expected.action)


def test_new_weights_play_at_once_but_for_the_span_of_a_rollout():
    agents = [make_agent("mlp", seed) for seed in range(2)]
    seen = observations("mlp", (GAMES * 2, AGENTS))
    side_by_side = PartitionedPolicy([agent.policy for agent in agents], GAMES)
    before = side_by_side.values(seen)
    agents[1].load_state_dict(copy.deepcopy(agents[0].state_dict()))
    expected = agents[0].policy.values({n: x[GAMES:] for n, x in seen.items()})
    assert not torch.equal(before[GAMES:], expected)
    torch.testing.assert_close(side_by_side.values(seen)[GAMES:], expected)
    for _ in range(2):
        agents[1].load_state_dict(make_agent("mlp", 1).state_dict())
        with side_by_side.unchanged():
            torch.testing.assert_close(side_by_side.values(seen), before)
            agents[1].load_state_dict(copy.deepcopy(agents[0].state_dict()))
            # The weights are put together once in a rollout, in which nobody may change them.
            torch.testing.assert_close(side_by_side.values(seen), before)
        torch.testing.assert_close(side_by_side.values(seen)[GAMES:], expected)


@pytest.mark.parametrize(("kind", "share"), one_in(3, itertools.product(KINDS, [True, False])))
def test_what_a_society_does_and_learns_does_not_depend_on_its_neighbours(kind, share):
    """Not in the last bit: alone, among five and among three others it has the same numbers."""
    everyone = [make_agent(kind, seed, share) for seed in range(5)]
    everyone[3] = make_agent(kind, 3, share, learning_rate=0.01, gamma=0.9, clip=0.3)
    found = {}
    for chosen in ([0, 1, 2, 3, 4], [3, 1, 4], [1], [3]):
        agents = [copy.deepcopy(everyone[i]) for i in chosen]
        for update in range(2):
            rollout = joined(kind, agents, [Seeds(i).child(update) for i in chosen])
            trainer = BatchedTrainer(agents)
            assert trainer._learners is not None
            metrics = trainer.update(rollout, [Seeds(i).child(update).torch("minibatches") for i in chosen])
        for i, own, agent in zip(chosen, metrics, agents, strict=True):
            numbers = [own, *(x.tolist() for x in agent.policy.state_dict().values())]
            assert found.setdefault(i, numbers) == numbers, (i, chosen)


def joined(kind, agents, seeds):
    """A rollout in which each agent sees and draws what its seed says, whoever is beside it."""
    parts = []
    for own in seeds:
        seed = int(own.integer("rollout"))
        parts.append((observations(kind, (STEPS, GAMES, AGENTS), seed), np.random.default_rng(seed)))
    seen = {name: torch.cat([own[name] for own, _ in parts], dim=1) for name in parts[0][0]}
    player = PartitionedPolicy([agent.policy for agent in agents], GAMES)
    generators = [own.torch("actions") for own in seeds]
    acts = [player.act({name: x[t] for name, x in seen.items()}, None, generators) for t in range(STEPS)]
    drawn = [[rng.normal(size=(STEPS, GAMES, AGENTS)).astype(np.float32) for _ in range(3)] for _, rng in parts]
    reward, shift, after = (torch.as_tensor(np.concatenate([own[i] for own in drawn], axis=1)) for i in range(3))
    ended = torch.as_tensor(np.concatenate([rng.random((STEPS, GAMES)) < 0.2 for _, rng in parts], axis=1))
    return played(seen, acts, reward, 0.1 * shift.abs(), after, ended)
