"""Derivatives through the agents' learning, compared with finite differences and an enumerated expectation."""

import dataclasses
import itertools
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from llmrl.agents.ppo_agent import PPOAgent, PPOAgentSettings
from llmrl.algorithms.meta_gradient import MetaGradient, compute_direct_derivative, compute_step_credits
from llmrl.algorithms.ppo import PPO
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import DifferentiableAgent, MetaLearner
from llmrl.core.records import MetaSettings, Outcome
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel
from llmrl.core.welfare_measures import OBJECTIVES, SUM
from llmrl.envs.escape_room import EscapeRoom
from llmrl.networks.action_distributions import CategoricalDistribution
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_summaries import compute_objective
from ppo_settings import PLAIN
from shipped import build_settings
from societies import make_spec, make_toy_spec
from some import mark_long_except, mark_long_except_every

TAU = np.array([1.2, 0.4, 0.7])
PPO_SETTINGS = replace(
    PLAIN, learning_rate=3e-2, gamma=0.95, gae_lambda=0.9, epochs=3, minibatch_size=11, entropy_coefficient=0.02
)
PG = {"epochs": 1, "minibatch_size": None, "clip": None, "value_clip": None, "max_grad_norm": 1e9}


class Pictured(EscapeRoom):
    """An environment with two agents and one lever that is observed as a picture with the incentives."""

    def __init__(self, pixels, visible, n_envs=3, seed=0):
        sizes = {"n_envs": n_envs, "n_agents": 2, "n_levers": 1, "min_agents_per_lever": 1, "horizon": 4}
        super().__init__(build_settings("env/escape_room", **sizes, show_mechanism=visible), Seeds(seed))
        self.pixels = pixels
        if pixels:
            channels = {name: x for name, x in self.spec.observation.items() if name != "vector"}
            channels["pixels"] = Channel((36, 36, 3), "uint8", 0, 255)
            self.spec = dataclasses.replace(self.spec, observation=channels)

    def _observe(self):
        observation = super()._observe()
        if self.pixels:
            vector = observation.pop("vector")
            picture = np.zeros((*vector.shape[:2], 36, 36, 3), dtype=np.uint8)
            picture[..., : vector.shape[-1], 0] = 255 * vector[:, :, None]
            observation["pixels"] = picture
        return observation


def society(env, freeze=False, share=True, teacher=None, critic="own", normalize=False, **changes):
    generator = Seeds(0).torch("weights")
    settings = NetworkSettings(6, [5], [], critic=critic, normalize_observations=normalize)
    members = [ActorCritic(env.spec, generator, settings) for _ in range(1 if share else env.spec.n_agents)]
    policy = SocietyPolicy(env.spec, members, freeze)
    with torch.no_grad():  # policies that prefer something: the score function is not symmetric
        for member in policy.members:
            member.actor[-1].weight.mul_(60)
    return PPO(policy.double(), dataclasses.replace(PPO_SETTINGS, **changes), teacher)


def doubled(rollout):
    """Return a copy in float64, for finite differences."""
    names = ("log_prob", "value", "next_value", "reward", "base_reward", "reward_jacobian")
    rollout_copy = rollout.copy()
    wide = {name: getattr(rollout_copy, name).double() for name in names}
    wide["observation"] = {n: x.double() if x.is_floating_point() else x for n, x in rollout_copy.observation.items()}
    return dataclasses.replace(rollout_copy, **wide)


def observe_mechanism(rollout, network, tau):
    """Return the rollout recorded under TAU as observed under `tau`."""
    shift = torch.as_tensor(tau - TAU)
    observation, features = dict(rollout.observation), rollout.features
    if "mechanism" in observation:
        observation["mechanism"] = observation["mechanism"] + shift
    elif features is not None and network.mechanism_columns is not None:
        features = features.clone()
        features[..., network.mechanism_columns] += shift
    return dataclasses.replace(
        rollout, reward=rollout.reward + rollout.reward_jacobian @ shift, observation=observation, features=features
    )


def read_weights(ppo):
    return {name: x.detach().clone() for name, x in ppo.policy.state_dict().items()}


def surrogate(ppo, rollouts, credits):
    total = 0.0
    for rollout, credit in zip(rollouts, credits, strict=True):
        for network, agents in ppo.policy.list_networks():
            data = ppo.build_samples(rollout, agents)
            with torch.no_grad():
                log_prob, _ = CategoricalDistribution.log_prob_entropy(network(data)[0], data["action"])
            total += float((log_prob.view(rollout.action[:, :, agents].shape) * credit[..., None]).sum())
    return total


CASES = {
    "shared": {},
    "shared, several rounds": {"rounds": 3},
    "independent, several rounds": {"rounds": 2, "share": False},
    "mechanism seen": {"rounds": 2, "visible": True},
    "mechanism seen, not counted": {"rounds": 2, "visible": True, "through": False},
    "frozen core": {"rounds": 2, "freeze": True},
    "frozen core, pixels, mechanism seen": {"rounds": 2, "freeze": True, "pixels": True, "visible": True},
    "frozen core, independent, mechanism seen": {"freeze": True, "pixels": True, "visible": True, "share": False},
    "trained core, pixels, mechanism seen": {"pixels": True, "visible": True},
    "targets counted": {"rounds": 2, "targets": True},
    "central critic, mechanism seen": {"rounds": 2, "visible": True, "critic": "central"},
    "central critics, independent, mechanism seen": {"visible": True, "critic": "central", "share": False},
    "policy gradient": {"rounds": 2, "share": False, **PG},
    "policy gradient without critic": {"rounds": 2, "share": False, "baseline": "none", **PG},
    "observations normalized": {"rounds": 2, "share": False, "normalize": True},
    "hardly clipped": {"rounds": 2, "clip": 0.01, "max_grad_norm": 1e9},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", mark_long_except_every(3, CASES))
def test_gradient_matches_finite_difference(case):
    """Compare with updates by torch's Adam under slightly different values and the same rollouts."""
    options = dict(CASES[case])
    rounds, pixels, visible = options.pop("rounds", 1), options.pop("pixels", False), options.pop("visible", False)
    settings = MetaSettings(
        observation_gradient=options.pop("through", True), differentiate_targets=options.pop("targets", False)
    )
    env = Pictured(pixels, visible)
    env.set_mechanism(TAU)
    ppo = society(env, **options)
    start = read_weights(ppo)
    collector = Collector(env, ppo.policy, "cpu")
    meta = MetaGradient(ppo, TAU, settings)
    adapted_rollouts = []
    for i in range(rounds + 2):
        collector.reset(i)
        adapted_rollouts.append(doubled(collector.collect(4, Seeds(i).torch("actions"), keep_reward_jacobian=True)))
        if i < rounds:
            meta.update(adapted_rollouts[i], Seeds(i).torch("minibatches"))
    adapted_rollouts, validation = adapted_rollouts[:rounds], adapted_rollouts[rounds:]
    episodes = [episode for rollout in validation for episode in rollout.episodes]
    values = compute_objective(episodes, SUM, 0.3)
    outcome = Outcome(TAU, float(values.mean()), values)
    gradient = meta.gradient(validation, SUM, 0.3, outcome)
    credits = compute_step_credits(validation, SUM, 0.3, outcome, settings)

    network = ppo.policy.members[0]
    ppo.policy.load_state_dict(start)
    ppo.reset()
    targets = []
    for i in range(rounds):
        targets.append(ppo.estimate_advantages(adapted_rollouts[i])[1])

    def objective(tau):
        transform = (lambda r: observe_mechanism(r, network, tau)) if settings.observation_gradient else (lambda r: r)
        ppo.policy.load_state_dict(start)
        ppo.reset()
        for i in range(rounds):
            changed_rollout = observe_mechanism(adapted_rollouts[i], network, tau)
            advantage, target = ppo.estimate_advantages(changed_rollout)
            target = target if settings.differentiate_targets else targets[i]
            ppo.fit(transform(adapted_rollouts[i]), advantage, target, Seeds(i).torch("minibatches"), ppo.updaters)
        return surrogate(ppo, [transform(rollout) for rollout in validation], credits)

    h = 1e-6
    slope = [(objective(TAU + h * e) - objective(TAU - h * e)) / (2 * h) for e in np.eye(3)]
    expected = np.array(slope) + compute_direct_derivative(validation, 0.3).numpy()
    assert np.abs(slope).max() > 1e-3, "nothing to compare"
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5 * np.abs(slope).max())


class FirstAction:
    """A teacher that counts its rollouts and advises action 0 in the first of them."""

    channels, policy = (), None

    def __init__(self):
        self.rollouts = 0

    def advise(self, rollout):
        self.rollouts += 1
        return {"weight": torch.full_like(rollout.value, 1.0 / self.rollouts)}

    def loss(self, minibatch, logits):
        return -(minibatch["weight"] * logits.log_softmax(-1)[:, 0]).mean(), {}

    def metrics(self):
        return {"teacher/rollouts": float(self.rollouts)}

    def state_dict(self):
        return {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"share": False},
        {"baseline": "none"},
        {"share": False, "baseline": "none"},
        {"separate_clipping": True, "max_grad_norm": 0.1},
        {"separate_clipping": True, "baseline": "none"},
        {"final_learning_rate": 1e-4, "decay_updates": 3},
        {"teacher": True},
        {"normalize": True},
        {"normalize": True, "share": False, "critic": "central"},
    ],
    ids=str,
)
def test_updates_match_ppo(changes):
    """Compare weights and moments in each round, also when the kinds of updates alternate."""
    env = Pictured(pixels=False, visible=True)
    env.set_mechanism(TAU)
    teachers = [FirstAction() if "teacher" in changes else None for _ in range(2)]
    first, second = (society(env, **changes | {"teacher": teacher}) for teacher in teachers)
    collector = Collector(env, first.policy, "cpu")
    for i in range(4):
        collector.reset(i)
        rollout = doubled(collector.collect(4, Seeds(i).torch("actions"), keep_reward_jacobian=True))
        learner = first if i in (0, 3) else MetaGradient(first, TAU, MetaSettings())
        metrics = [member.update(rollout, Seeds(i).torch("minibatches")) for member in (learner, second)]
        assert metrics[0] == pytest.approx(metrics[1], rel=1e-9, abs=1e-12)
    for name, x in second.policy.state_dict().items():
        torch.testing.assert_close(first.policy.state_dict()[name], x, rtol=1e-10, atol=1e-12)
    mine, second_states = (p.state_dict()["optimizers"] for p in (first, second))
    for a, b in zip(mine, second_states, strict=True):
        assert a["state"].keys() == b["state"].keys()
        for key, moments in b["state"].items():
            for name, x in moments.items():
                torch.testing.assert_close(a["state"][key][name], x, rtol=1e-10, atol=1e-14)


def test_graph_is_released_after_gradient():
    env = Pictured(pixels=False, visible=True)
    env.set_mechanism(TAU)
    ppo = society(env)
    collector = Collector(env, ppo.policy, "cpu")
    collector.reset(0)
    rollout = doubled(collector.collect(4, Seeds(0).torch("actions"), keep_reward_jacobian=True))
    meta = MetaGradient(ppo, TAU, MetaSettings())
    meta.update(rollout, Seeds(0).torch("minibatches"))
    references = [weakref.ref(x) for x in meta._updaters[0].weights.values()]
    outcome = Outcome(TAU, 0.0, np.zeros(3))
    meta.gradient([rollout], SUM, 0.0, outcome)
    assert [ref() for ref in references] == [None] * len(references)


def test_core_must_observe_mechanism():
    ppo = society(Pictured(pixels=False, visible=True), freeze=True)
    with pytest.raises(ConfigError, match=r"agent.freeze=none.*principal.observation_gradient=false"):
        MetaGradient(ppo, TAU, MetaSettings())
    MetaGradient(ppo, TAU, MetaSettings(observation_gradient=False))


# One step, two agents, two actions: every course of events can be listed.
PAYOFF = np.array([[[3.0, 1.0], [-2.0, 0.5]], [[1.0, -1.0], [2.0, 4.0]]])  # [action, action, agent]
KNOBS = np.array([0.5, -0.3])  # paid for action 0 and 1
ONE_STEP_SPEC = make_spec(make_toy_spec().mechanism, n_agents=2, horizon=1)


def play_single_step(policy, joint_actions):
    """Return one game for each pair of actions, as if it had been sampled."""
    action = torch.tensor([joint_actions])
    n = len(joint_actions)
    first, second = action[0].T.numpy()
    base = torch.tensor(PAYOFF[first, second])[None]
    reward_jacobian = torch.nn.functional.one_hot(action, 2).double()
    vector = torch.ones(1, n, 2, 2, dtype=torch.float64)
    identity = torch.eye(2, dtype=torch.float64).expand(1, n, 2, 2)
    with torch.no_grad():
        outs = [
            network({"vector": vector[:, :, agents].flatten(0, 2), "player": identity[:, :, agents].flatten(0, 2)})
            for network, agents in policy.list_networks()
        ]
    logits = torch.cat([x.view(1, n, -1, 2) for x, _ in outs], dim=2)
    value = torch.cat([x.view(1, n, -1) for _, x in outs], dim=2)
    log_prob, _ = CategoricalDistribution.log_prob_entropy(logits, action)
    reward = base + reward_jacobian @ torch.tensor(KNOBS)
    done = torch.ones(1, n, dtype=torch.bool)
    zeros = np.zeros(2)
    episodes = [Episode(reward[0, i].numpy(), base[0, i].numpy(), 1, {}, zeros, zeros, i) for i in range(n)]
    return Rollout(
        {"vector": vector}, None, action, log_prob, value, reward, base, done & False, done, done,
        torch.zeros(1, n, 2, dtype=torch.float64), {}, episodes, reward_jacobian,
    )  # fmt: skip


PAIRS = list(itertools.product(range(2), repeat=2))


@pytest.mark.slow
@pytest.mark.parametrize("objective", mark_long_except(["minimum"], ["mean", "sum", "minimum"]))
@pytest.mark.parametrize("games", mark_long_except([2], [1, 2]))
def test_estimator_has_no_bias(objective, games):
    """Check that the exact expectation equals the derivative of the expected objective."""
    cost = 0.4
    ppo = society(type("", (), {"spec": ONE_STEP_SPEC}), share=False, normalize_advantage=False)
    start = read_weights(ppo)
    settings = MetaSettings(past_return=1.7)

    def restart():
        ppo.policy.load_state_dict(start)
        ppo.reset()

    def probability(rollout):
        return rollout.log_prob.sum(-1).exp()[0].numpy()  # of each game's pair

    def value(rollout, knobs):
        """Return the objective of each game if the values were `knobs`."""
        spending = (rollout.reward_jacobian[0].numpy() @ knobs).sum(1)
        return compute_objective(rollout.episodes, OBJECTIVES[objective]) - cost * spending

    restart()
    first = probability(play_single_step(ppo.policy, PAIRS))

    def expected(knobs):
        total = 0.0
        for pair, chance in zip(PAIRS, first, strict=True):
            restart()
            rollout = play_single_step(ppo.policy, [pair])
            perturbed = dataclasses.replace(
                rollout, reward=rollout.reward + rollout.reward_jacobian @ torch.tensor(knobs - KNOBS)
            )
            advantage, _ = ppo.estimate_advantages(perturbed)
            _, target = ppo.estimate_advantages(rollout)
            ppo.fit(rollout, advantage, target, Seeds(0).torch("m"), ppo.updaters)
            after = play_single_step(ppo.policy, PAIRS)
            total += chance * (probability(after) * value(after, knobs)).sum()
        return total

    mean = np.zeros(2)
    for pair, chance in zip(PAIRS, first, strict=True):
        for actions_played in itertools.product(PAIRS, repeat=games):
            restart()
            meta = MetaGradient(ppo, KNOBS, settings)
            meta.update(play_single_step(ppo.policy, [pair]), Seeds(0).torch("m"))
            rollout = play_single_step(ppo.policy, list(actions_played))
            values = value(rollout, KNOBS)
            gradient = meta.gradient(
                [rollout], OBJECTIVES[objective], cost, Outcome(KNOBS, float(values.mean()), values)
            )
            mean += chance * probability(rollout).prod() * gradient
    h = 1e-5
    slope = [(expected(KNOBS + h * e) - expected(KNOBS - h * e)) / (2 * h) for e in np.eye(2)]
    assert np.abs(slope).max() > 0.02
    np.testing.assert_allclose(mean, slope, rtol=1e-5, atol=1e-7)


def test_agents_give_meta_learners():
    options = {
        **{"share_parameters": True, "features": 4},
        **{"core_hidden": [4], "init_from": None, "init_parts": "all", "keep_optimizer": False, "ppo": PPO_SETTINGS},
    }
    agent = PPOAgent(ONE_STEP_SPEC, PPOAgentSettings(**options, freeze="none"), Seeds(0), "cpu", has_principal=True)
    assert isinstance(agent, DifferentiableAgent)
    assert isinstance(agent.meta_learner(KNOBS, MetaSettings()), MetaLearner)
    player = PPOAgent(ONE_STEP_SPEC, PPOAgentSettings(**options, freeze="all"), Seeds(0), "cpu", has_principal=True)
    with pytest.raises(ConfigError, match=r"agent.freeze=all"):
        player.meta_learner(KNOBS, MetaSettings())
