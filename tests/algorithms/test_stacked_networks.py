"""Societies computed as one batch give the same numbers as separate ones."""

import copy
import dataclasses
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from llmrl.agents.ppo_agent import PPOAgent, PPOAgentSettings
from llmrl.algorithms.societies.batched_trainer import BatchedTrainer
from llmrl.algorithms.societies.partitioned_policy import PartitionedPolicy, split_rollout
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, ContinuousActions, EnvSpec
from ppo_settings import PLAIN
from signal_game.parts import AlwaysZero
from some import mark_long_except, mark_long_except_every

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
    numbers = NUMBERS if kind == "numbers" else None
    return EnvSpec(
        "toy", n_envs, AGENTS, CHANNELS.get(kind, VECTOR), ACTIONS, names, horizon=STEPS, continuous_actions=numbers
    )


def make_agent(kind, seed=0, share=True, freeze="none", teacher=None, agent_class=PPOAgent, memory=None, **changes):
    size = 4 if kind == "pixels" else 10  # of pictures few enough that two networks are convolved at once
    ppo = dataclasses.replace(SETTINGS, **{"minibatch_size": size, **changes})
    settings = PPOAgentSettings(
        share_parameters=share,
        features=16 if kind != "grid" else None,
        core_hidden=[8],
        head_hidden=[6] if kind == "mlp" else [],
        memory=memory,
        critic=kind if kind in ("central", "separate") else "own",
        freeze=freeze,
        init_from=None,
        init_parts="all",
        keep_optimizer=False,
        ppo=ppo,
    )
    return agent_class(make_spec(kind), settings, Seeds(seed), "cpu", has_principal=True, teacher=teacher)


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
    """Return a rollout of parallel `agents` with random rewards and ends."""
    rng, n_envs = np.random.default_rng(seed), GAMES * len(agents)
    shape = (STEPS, n_envs, AGENTS)
    inputs = observations(kind, shape, seed)
    player = PartitionedPolicy([agent.policy for agent in agents], GAMES)
    acts, state = [], None
    for t in range(STEPS):
        act = player.act({name: x[t] for name, x in inputs.items()}, state, Seeds(seed).torch(t))
        state = act.state
        acts.append(act)
    reward, draws = (torch.as_tensor(rng.normal(size=shape), dtype=torch.float32) for _ in range(2))
    done = torch.as_tensor(rng.random(shape[:2]) < 0.2)
    return select_rollout(inputs, acts, reward, 0.1 * draws.abs(), draws, done, state)


def select_rollout(inputs, acts, reward, shift, next_inputs, done, state=None):
    """Build the rollout of given outputs.

    Old log-probabilities are lower by `shift`; values of the next states are random.
    """
    action, log_prob, value = (torch.stack([getattr(a, n) for a in acts]) for n in ("action", "log_prob", "value"))
    has_features = acts[0].features is not None
    return Rollout(
        observation={n: x for n, x in inputs.items() if not has_features or n == "action_mask"},
        features=torch.stack([a.features for a in acts]) if has_features else None,
        action=action,
        log_prob=log_prob - shift,
        value=value,
        reward=reward,
        base_reward=reward,
        terminated=done,
        truncated=torch.zeros_like(done),
        episode_start=torch.zeros_like(done),
        next_value=torch.where(done[..., None], 0.0, next_inputs),
        info={},
        episodes=[],
        state=None if state is None else torch.zeros_like(state),
    )


def update_stacked_and_separate(kind, agents, updates=3):
    """Update the agents as a stack and copies of them separately; return both and the last metrics."""
    separate, stacked = copy.deepcopy(agents), BatchedTrainer(agents)
    for i in range(updates):
        rollout = make_rollout(kind, separate, i)
        # Societies 0 and 1 draw the same, as under two proposals.
        seeds = [Seeds(k // 2).child(i) for k in range(len(agents))]
        found = stacked.update(rollout, [seed_stream.torch("minibatches") for seed_stream in seeds])
        parts = zip(separate, split_rollout(rollout, len(agents)), seeds, strict=True)
        expected = [agent.update(part, seed_stream.torch("minibatches")) for agent, part, seed_stream in parts]
    return stacked, separate, found, expected


def assert_agents_equal(agents, other_agents, **tolerance):
    for left_agent, right_agent in zip(agents, other_agents, strict=True):
        mine, right_state = left_agent.state_dict(), right_agent.state_dict()
        assert mine["policy"].keys() == right_state["policy"].keys()
        for name, x in mine["policy"].items():
            torch.testing.assert_close(x, right_state["policy"][name], msg=name, **tolerance)
        optimizers = (x["learner"]["optimizers"] for x in (mine, right_state))
        for left_optimizer, right_optimizer in zip(*optimizers, strict=True):
            assert left_optimizer["state"].keys() == right_optimizer["state"].keys()
            for key, moments in left_optimizer["state"].items():
                assert moments["step"] == right_optimizer["state"][key]["step"]
                torch.testing.assert_close(moments["exp_avg"], right_optimizer["state"][key]["exp_avg"], **tolerance)
                torch.testing.assert_close(
                    moments["exp_avg_sq"], right_optimizer["state"][key]["exp_avg_sq"], **tolerance
                )


def each_once(names):
    """Return a pair of each name with whether parameters are shared, as they are in every other one."""
    return list(zip(names, itertools.cycle([True, False])))


KINDS = ("mlp", "grid", "pixels", "masked", "central", "separate", "numbers")
CLOSE = {"rtol": 1e-3, "atol": 2e-5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "share", "societies"), mark_long_except_every(5, itertools.product(KINDS, [True, False], [1, 3]))
)
def test_stacked_updates_match_separate_updates(kind, share, societies):
    agents = [make_agent(kind, seed, share) for seed in range(societies)]
    initial_agents = copy.deepcopy(agents)
    stacked, separate, found, expected = update_stacked_and_separate(kind, agents)
    assert stacked._stacks
    assert_agents_equal(agents, separate, **CLOSE)
    for stacked_metrics, separate_metrics in zip(found, expected, strict=True):
        assert stacked_metrics == pytest.approx(separate_metrics, rel=1e-3, abs=1e-4)
    for agent, right_agent in zip(agents, initial_agents, strict=True):
        for network, old in zip(agent.policy.members, right_agent.policy.members, strict=True):
            parameters = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
            assert (parameters - torch.nn.utils.parameters_to_vector(old.parameters())).abs().max() > 1e-2


CHANGES = {
    "frozen core": {"freeze": "core"},
    "no critic": {"baseline": "none"},
    "step size that decays": {"final_learning_rate": 1e-4, "decay_updates": 2},
    "policy gradient": {"epochs": 1, "minibatch_size": None, "clip": None, "normalize_advantage": False},
    "full minibatches alone": {"drop_last": True},
    "gradients scaled down apart": {"separate_clipping": True},
    "gradients scaled down apart, no critic": {"separate_clipping": True, "baseline": "none"},
    "advantages normalized over the rollout": {"normalization_scope": "rollout", "advantage_eps": 0.1},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", mark_long_except(each_once(CHANGES), itertools.product(CHANGES, [True, False])))
def test_settings_that_affect_training(case):
    change, share = case
    agents = [make_agent("mlp", seed, share, **CHANGES[change]) for seed in range(2)]
    stacked, separate, found, expected = update_stacked_and_separate("mlp", agents)
    assert stacked._stacks
    if "drop_last" in CHANGES[change]:  # of 36 samples of three agents, or 12 of one, in tens, twice
        assert {agent_metrics["loss/updates"] for agent_metrics in found} == {6.0}
    assert_agents_equal(agents, separate, **CLOSE)
    assert [sorted(agent_metrics) for agent_metrics in found] == [sorted(separate_state) for separate_state in expected]


class CustomUpdate(PPOAgent):
    """An agent whose update extends that of its learner."""

    def update(self, rollout, generator):
        return {**super().update(rollout, generator), "own": 1.0}


SEPARATE_SETTINGS = {
    "memory": {"memory": 4},
    "stop by KL": {"target_kl": 1e-4},
    "normalized values": {"normalize_values": True},
    "ratios of joint actions": {"joint_ratio": True},
    "custom update": {"agent_class": CustomUpdate},
    "teacher": {"teacher": True},
}


@pytest.mark.parametrize("reason", SEPARATE_SETTINGS)
def test_unstackable_networks_update_sequentially(reason):
    changes = SEPARATE_SETTINGS[reason]
    agents = []
    for seed in range(2):
        teacher_options = {"teacher": AlwaysZero(0.5)} if "teacher" in changes else {}
        agents.append(make_agent("mlp", seed, **{**changes, **teacher_options}))
    stacked, separate, found, expected = update_stacked_and_separate("mlp", agents)
    assert not stacked._stacks
    assert found == expected
    assert_agents_equal(agents, separate, rtol=0, atol=0)


def test_agents_with_different_shapes_separate():
    agents = [make_agent("mlp", seed) for seed in range(2)]
    agents[1].update(make_rollout("mlp", agents[1:]), Seeds(0).torch("minibatches"))
    stacked, separate, _, _ = update_stacked_and_separate("mlp", agents)
    assert len(stacked._stacks) == 2
    assert_agents_equal(agents, separate, **CLOSE)
    wider = [make_agent("mlp"), make_agent("grid")]
    assert BatchedTrainer(wider)._learners is None


@pytest.mark.parametrize("case", mark_long_except(each_once(KINDS), itertools.product(KINDS, [True, False])))
def test_stacked_rollout_matches_separate_rollout(case):
    kind, share = case
    agents = [make_agent(kind, seed, share) for seed in range(3)]
    inputs = observations(kind, (GAMES * 3, AGENTS))
    partitioned = PartitionedPolicy([agent.policy for agent in agents], GAMES)
    generators = [Seeds(seed).torch("actions") for seed in (0, 1)]
    generators.append(generators[0])
    for turn in range(2):
        act = partitioned.act(inputs, None, generators)
        values = partitioned.values(inputs)
        for k, agent in enumerate(agents):
            mine = slice(k * GAMES, (k + 1) * GAMES)
            generator = Seeds(k % 2).torch("actions")
            for _ in range(turn + 1):
                expected = agent.policy.act({n: x[mine] for n, x in inputs.items()}, None, generator)
            torch.testing.assert_close(act.value[mine], expected.value, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(values[mine], expected.value, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(act.log_prob[mine], expected.log_prob, rtol=1e-4, atol=1e-5)
            if kind == "numbers":
                torch.testing.assert_close(act.action[mine], expected.action, rtol=1e-4, atol=1e-5)
                assert act.logits is None
                continue
            torch.testing.assert_close(act.logits[mine], expected.logits, rtol=1e-4, atol=1e-5)
            assert torch.equal(act.action[mine], expected.action)


def test_weights_update_outside_rollouts():
    agents = [make_agent("mlp", seed) for seed in range(2)]
    inputs = observations("mlp", (GAMES * 2, AGENTS))
    partitioned = PartitionedPolicy([agent.policy for agent in agents], GAMES)
    initial_values = partitioned.values(inputs)
    agents[1].load_state_dict(copy.deepcopy(agents[0].state_dict()))
    expected = agents[0].policy.values({n: x[GAMES:] for n, x in inputs.items()})
    assert not torch.equal(initial_values[GAMES:], expected)
    torch.testing.assert_close(partitioned.values(inputs)[GAMES:], expected)
    for _ in range(2):
        agents[1].load_state_dict(make_agent("mlp", 1).state_dict())
        with partitioned.fixed_weights():
            torch.testing.assert_close(partitioned.values(inputs), initial_values)
            agents[1].load_state_dict(copy.deepcopy(agents[0].state_dict()))
            # The weights are put together once in a rollout, in which nobody may change them.
            torch.testing.assert_close(partitioned.values(inputs), initial_values)
        torch.testing.assert_close(partitioned.values(inputs)[GAMES:], expected)


@pytest.mark.parametrize(("kind", "share"), mark_long_except_every(5, itertools.product(KINDS, [True, False])))
def test_stack_keeps_society(kind, share):
    """Compare bit for bit: alone, in a stack of five and in a stack of four."""
    everyone = [make_agent(kind, seed, share) for seed in range(5)]
    everyone[3] = make_agent(kind, 3, share, learning_rate=0.01, gamma=0.9, clip=0.3)
    found = {}
    for selection in ([0, 1, 2, 3, 4], [3, 1, 4], [1], [3]):
        agents = [copy.deepcopy(everyone[i]) for i in selection]
        for update in range(2):
            rollout = join_rollouts(kind, agents, [Seeds(i).child(update) for i in selection])
            trainer = BatchedTrainer(agents)
            assert trainer._learners is not None
            metrics = trainer.update(rollout, [Seeds(i).child(update).torch("minibatches") for i in selection])
        for i, agent_metrics, agent in zip(selection, metrics, agents, strict=True):
            numbers = [agent_metrics, *(x.tolist() for x in agent.policy.state_dict().values())]
            assert found.setdefault(i, numbers) == numbers, (i, selection)


def join_rollouts(kind, agents, seeds):
    """Return a rollout in which each agent's inputs and random numbers depend on its own seed only."""
    parts = []
    for part in seeds:
        seed = int(part.integer("rollout"))
        parts.append((observations(kind, (STEPS, GAMES, AGENTS), seed), np.random.default_rng(seed)))
    inputs = {name: torch.cat([part[name] for part, _ in parts], dim=1) for name in parts[0][0]}
    player = PartitionedPolicy([agent.policy for agent in agents], GAMES)
    generators = [part.torch("actions") for part in seeds]
    acts = [player.act({name: x[t] for name, x in inputs.items()}, None, generators) for t in range(STEPS)]
    draws = [[rng.normal(size=(STEPS, GAMES, AGENTS)).astype(np.float32) for _ in range(3)] for _, rng in parts]
    reward, shift, after = (torch.as_tensor(np.concatenate([part[i] for part in draws], axis=1)) for i in range(3))
    done = torch.as_tensor(np.concatenate([rng.random((STEPS, GAMES)) < 0.2 for _, rng in parts], axis=1))
    return select_rollout(inputs, acts, reward, 0.1 * shift.abs(), after, done)
