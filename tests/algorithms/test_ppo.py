"""PPO: gradient steps compared with autograd, learning, freezing, independent networks and teachers."""

import copy
import dataclasses

import pytest
import torch

from llmrl.algorithms.advantages_and_losses import discounted_returns, generalized_advantages, unexplained_variance
from llmrl.algorithms.ppo import PPO
from llmrl.core.errors import ConfigError, Diverged
from llmrl.core.seeding import Seeds
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.layers import RunningMoments
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.rollout.collector import Collector
from ppo_settings import PLAIN
from signal_game.parts import AlwaysZero
from some import mark_long_except

SETTINGS = PLAIN


def make(env, freeze_core=False, share=True, teacher=None, **changes):
    generator = Seeds(0).torch("weights")
    n = 1 if share else env.spec.n_agents
    policy = SocietyPolicy(
        env.spec, [ActorCritic(env.spec, generator, NetworkSettings(32, [], [])) for _ in range(n)], freeze_core
    )
    collector = Collector(env, policy, "cpu")
    collector.reset(0)
    return policy, PPO(policy, dataclasses.replace(SETTINGS, **changes), teacher), collector


def train(ppo, collector, updates, steps=16):
    for i in range(updates):
        seeds = Seeds(0).child(i)
        metrics = ppo.update(collector.collect(steps, seeds.torch("actions")), seeds.torch("minibatches"))
    return metrics


def final_accuracy(collector):
    rollout = collector.collect(64, Seeds(5).torch("actions"), learn=False)
    return rollout.reward.mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("share", mark_long_except([False], [True, False]))
def test_agent_learns_signal_game(signal_game, share):
    _, ppo, collector = make(signal_game(n_envs=8), share=share)
    assert final_accuracy(collector) < 0.5
    train(ppo, collector, 40)
    assert final_accuracy(collector) > 0.9


def test_first_update_matches_loss_gradient(signal_game):
    """Use one minibatch and one epoch: the ratio is 1, so Adam's first step is lr * g / (|g| + eps)."""
    env = signal_game(horizon=4)
    settings = {"epochs": 1, "minibatch_size": 10**6, "max_grad_norm": 1e9, "bootstrap_truncation": False}
    policy, ppo, collector = make(env, **settings)
    rollout = collector.collect(8, Seeds(1).torch("actions"))
    network = policy.members[0]
    ended = rollout.truncated[..., None].expand_as(rollout.value)
    next_value = torch.where(ended, 0.0, rollout.next_value)
    advantage = generalized_advantages(rollout.reward, rollout.value, next_value, ended, 0.9, 0.95)
    target = (advantage + rollout.value).flatten()
    normal = ((advantage - advantage.mean()) / (advantage.std() + 1e-8)).flatten()
    identity = torch.eye(2).expand(8, 4, 2, 2)
    channels = {"vector": rollout.observation["vector"].flatten(0, 2), "player": identity.flatten(0, 2)}
    logits, value = network(channels)
    log_probs = logits.log_softmax(-1)
    action_log_prob = log_probs.gather(1, rollout.action.flatten()[:, None])[:, 0]
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    loss = -(action_log_prob * normal).mean() + 0.5 * 0.5 * (value - target).square().mean() - 0.01 * entropy
    parameters = list(network.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    expected = [p - 3e-3 * g / (g.abs() + 1e-5) for p, g in zip(parameters, gradients, strict=True)]
    expected = [e.detach().clone() for e in expected]
    ppo.update(rollout, Seeds(0).torch("minibatches"))
    for p, e in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach(), e, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("baseline", ["value", "none"])
def test_policy_gradient_is_grad_log_pi_times_advantage(signal_game, baseline):
    """Use one epoch, one batch, no clipping and no entropy."""
    settings = {"epochs": 1, "minibatch_size": None, "clip": None, "value_clip": None, "normalize_advantage": False}
    off = {"entropy_coefficient": 0.0, "value_coefficient": 0.0, "max_grad_norm": 1e9}
    policy, ppo, collector = make(signal_game(horizon=4), share=False, baseline=baseline, **settings, **off)
    rollout = collector.collect(8, Seeds(1).torch("actions"))
    steps, games = rollout.reward.shape[:2]
    if baseline == "value":
        truncated = rollout.truncated[..., None].expand_as(rollout.value)
        advantage = generalized_advantages(rollout.reward, rollout.value, rollout.next_value, truncated, 0.9, 0.95)
    else:  # discounted reward to go, by hand
        advantage = torch.zeros_like(rollout.reward)
        for t in range(steps):
            for k in range(t, t - t % 4 + 4):
                advantage[t] += 0.9 ** (k - t) * rollout.reward[k]
    for agent, network in enumerate(policy.members):
        expected = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
        for t in range(steps):
            for game in range(games):
                vector = rollout.observation["vector"][t, game, agent]
                features = network.core(torch.cat([vector, torch.eye(2)[agent]])[None])
                log_prob = network.actor(features).log_softmax(-1)[0, rollout.action[t, game, agent]]
                actor_parameters = {n: p for n, p in network.named_parameters() if not n.startswith("critic")}
                gradients = torch.autograd.grad(log_prob, list(actor_parameters.values()))
                for name, g in zip(actor_parameters, gradients, strict=True):
                    expected[name] -= g * advantage[t, game, agent] / (steps * games)
        network.expected = expected
    ppo.update(rollout, Seeds(0).torch("minibatches"))
    for network in policy.members:
        for name, p in network.named_parameters():
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            torch.testing.assert_close(gradient, network.expected[name], rtol=1e-4, atol=1e-7)


def test_critic_is_unchanged_with_no_baseline(signal_game):
    policy, ppo, collector = make(signal_game(), baseline="none")
    initial_parameters = {n: p.clone() for n, p in policy.named_parameters()}
    metrics = train(ppo, collector, 2)
    for name, p in policy.named_parameters():
        assert torch.equal(p, initial_parameters[name]) == (".critic." in name), name
    assert metrics["loss/value"] == 0.0 and "loss/explained_variance" not in metrics


def test_frozen_core_trains_heads(signal_game):
    policy, ppo, collector = make(signal_game(), freeze_core=True)
    initial_parameters = {n: p.clone() for n, p in policy.named_parameters()}
    train(ppo, collector, 2)
    for name, p in policy.named_parameters():
        assert torch.equal(p, initial_parameters[name]) == (".core." in name), name


def test_frozen_features_match_full_encoding(signal_game):
    """Check that stored features give the same heads as a core that runs on each minibatch."""
    env, twin = signal_game(), signal_game()
    policy, ppo, collector = make(env, freeze_core=True)
    policy2, ppo2, collector2 = make(twin, freeze_core=True)
    policy2.core_frozen = False  # encodes every minibatch; its core has no gradient either way
    train(ppo, collector, 2)
    train(ppo2, collector2, 2)
    for (name, p), (_, q) in zip(policy.named_parameters(), policy2.named_parameters(), strict=True):
        torch.testing.assert_close(p, q, msg=name)


def test_independent_networks_do_not_share_samples(signal_game):
    """Check that rewards of agent 0 do not affect the network of agent 1."""
    env = signal_game()
    policy, ppo, collector = make(env, share=False)
    rollout = collector.collect(16, Seeds(1).torch("actions"))
    state = {k: v.clone() for k, v in policy.state_dict().items()}
    ppo.update(rollout, Seeds(0).torch("minibatches"))
    first = {k: v.clone() for k, v in policy.state_dict().items()}
    policy.load_state_dict(state)
    ppo.reset()
    rollout.reward[:, :, 0] += 10 * torch.rand(16, 4, generator=Seeds(3).torch("noise"))
    ppo.update(rollout, Seeds(0).torch("minibatches"))
    second = policy.state_dict()
    assert any(not torch.equal(first[k], second[k]) for k in first if k.startswith("members.0"))
    assert all(torch.equal(first[k], second[k]) for k in first if k.startswith("members.1"))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("size", [None, 16])
@pytest.mark.parametrize("clip", [0.2, None])
def test_metrics_average_all_samples(signal_game, share, size, clip):
    """Use a policy that does not change and differs from the policy of the rollout."""
    frozen_options = {"learning_rate": 1e-12, "normalize_advantage": False, "value_clip": 0.05, "epochs": 3}
    policy, ppo, collector = make(signal_game(n_envs=4), share=share, minibatch_size=size, clip=clip, **frozen_options)
    rollout = collector.collect(16, Seeds(1).torch("actions"))
    shift = 0.3 * torch.randn(rollout.log_prob.shape, generator=Seeds(2).torch("noise"))
    rollout.log_prob += shift
    rollout.value += 0.3 * torch.randn(rollout.value.shape, generator=Seeds(3).torch("noise"))
    advantage, target = ppo.estimate_advantages(rollout)
    parts = {name: [] for name in ("policy", "value", "entropy", "kl", "clip_fraction")}
    for network, agents in policy.list_networks():
        batch = ppo.build_samples(rollout, agents)
        with torch.no_grad():
            logits, value = network(batch)
        log_probs = logits.log_softmax(-1)
        log_ratio = log_probs.gather(1, batch["action"][:, None])[:, 0] - batch["log_prob"]
        ratio, agent_advantage = log_ratio.exp(), advantage[:, :, agents].flatten()
        clipped_ratio = ratio if clip is None else ratio.clamp(0.8, 1.2)
        parts["policy"].append(-torch.minimum(ratio * agent_advantage, clipped_ratio * agent_advantage))
        targets = target[:, :, agents].flatten()
        clipped_value = batch["value"] + (value - batch["value"]).clamp(-0.05, 0.05)
        parts["value"].append(0.5 * torch.maximum((value - targets) ** 2, (clipped_value - targets) ** 2))
        parts["entropy"].append(-(log_probs.exp() * log_probs).sum(-1))
        parts["kl"].append(ratio - 1 - log_ratio)
        parts["clip_fraction"].append(((ratio - 1).abs() > (0.2 if clip else float("inf"))).float())
    expected = {f"loss/{name}": float(torch.cat(terms).mean()) for name, terms in parts.items()}
    assert expected["loss/kl"] > 0.03 and bool(clip) == (expected["loss/clip_fraction"] > 0.3)
    expected["loss/explained_variance"] = 1 - float((target - rollout.value).var() / target.var())
    expected["loss/updates"] = 3 * (8 if size else len(policy.members))
    metrics = ppo.update(rollout, Seeds(0).torch("minibatches"))
    assert metrics.pop("loss/grad_norm") > 0
    assert metrics == pytest.approx(expected, rel=1e-4)


def test_gradient_norm_precedes_clipping(signal_game):
    policy, ppo, collector = make(signal_game(), epochs=1, minibatch_size=None, max_grad_norm=1e9)
    rollout = collector.collect(16, Seeds(1).torch("actions"))
    metrics = ppo.update(rollout, Seeds(0).torch("minibatches"))
    norm = sum(float(p.grad.square().sum()) for p in policy.parameters()) ** 0.5
    assert metrics["loss/grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_explained_variance_of_constant_targets():
    target, value = torch.ones(2, 4), torch.tensor([[1.0, 1, 1, 1], [0, 2, 0, 2]])
    assert unexplained_variance(target, value).tolist() == pytest.approx([0.0, 1e8])
    target = torch.tensor([0.0, 2.0, 0.0, 2.0])
    assert float(unexplained_variance(target, target / 2)) == pytest.approx(0.25)


def test_non_finite_losses_end_run(signal_game):
    _, ppo, collector = make(signal_game())
    train(ppo, collector, 2)
    result = ppo.summarize([1.0, float("inf"), 0.5, float("nan"), 0.0, 2.0, 0.5], 8)
    assert isinstance(result, Diverged)
    phrases = ("update 2", "loss/value inf", "loss/kl nan", "loss/grad_norm 2", "agent.ppo.learning_rate")
    assert [text for text in phrases if text not in str(result)] == []


class Counting(AlwaysZero):
    """A teacher whose advice is the action of each sample, which it checks in every minibatch."""

    resets = n_seen = 0

    def advise(self, rollout):
        return {"advice": 1 - rollout.action}

    def loss(self, minibatch, logits):
        assert (minibatch["advice"] == 1 - minibatch["action"]).all()
        self.n_seen += len(minibatch["advice"])
        return super().loss(minibatch, logits)

    def reset(self):
        self.resets += 1

    def state_dict(self):
        return {"resets": self.resets}

    def load_state_dict(self, state):
        self.resets = state["resets"]


@pytest.mark.parametrize("share", [True, False])
def test_advice_follows_sample(signal_game, share):
    _, ppo, collector = make(signal_game(n_envs=4), share=share, teacher=Counting(1.0), epochs=2, minibatch_size=30)
    metrics = train(ppo, collector, 1)
    assert ppo.teacher.n_seen == 2 * 16 * 4 * 2 and metrics["teacher/weight"] == 1.0


def test_state_includes_teacher_and_optimizers(signal_game):
    _, ppo, collector = make(signal_game(), share=False, teacher=Counting(1.0))
    train(ppo, collector, 1)
    ppo.teacher.resets = 7
    state = copy.deepcopy(ppo.state_dict())
    _, restored, _ = make(signal_game(), share=False, teacher=Counting(1.0))
    restored.load_state_dict(state)
    assert restored.teacher.resets == 7 and restored.n_updates == 1
    assert str(restored.state_dict()) == str(state)
    _, shared, _ = make(signal_game(), teacher=Counting(1.0))
    with pytest.raises(ValueError, match="longer"):
        shared.load_state_dict(state)


def test_rewards_are_scaled_within_episodes(signal_game):
    _, ppo, collector = make(signal_game(horizon=5), scale_rewards=True)
    rollout = collector.collect(16, Seeds(1).torch("actions"))
    episode_end = rollout.terminated | rollout.truncated
    scale = RunningMoments()
    scale.update(discounted_returns(rollout.reward, episode_end, 0.9).flatten())
    ppo.begin_update(rollout)
    assert str(ppo.reward_moments.state_dict()) == str(scale.state_dict())
    advantage, target = ppo.estimate_advantages(rollout)
    reward, done = rollout.reward / scale.deviation, episode_end[..., None].expand_as(rollout.reward)
    expected = generalized_advantages(reward, rollout.value, rollout.next_value, done, 0.9, 0.95)
    torch.testing.assert_close(advantage, expected)
    torch.testing.assert_close(target, expected + rollout.value)


def test_reset_reinitializes_parts(signal_game):
    _, ppo, collector = make(signal_game(), teacher=Counting(1.0), scale_rewards=True)
    first = ppo.state_dict()["scales"]
    train(ppo, collector, 2)
    scales, updaters = ppo.state_dict()["scales"], ppo.updaters
    ppo.reset(keep_moments=True)
    assert ppo.updaters is updaters and (ppo.n_updates, ppo.teacher.resets) == (0, 1)
    assert str(ppo.state_dict()["scales"]) == str(first) != str(scales)
    ppo.set_initial_scales(scales)
    assert str(ppo.state_dict()["scales"]) == str(scales)
    train(ppo, collector, 1)
    ppo.reset()
    assert str(ppo.state_dict()["scales"]) == str(scales), "that of loaded weights"
    assert [updater.optimizer.state_dict()["state"] for updater in ppo.updaters] == [{}] and ppo.teacher.resets == 2


def test_target_kl_stops_epochs(signal_game):
    _, ppo, collector = make(signal_game(), target_kl=1e-12, epochs=10)
    metrics = train(ppo, collector, 1)
    assert metrics["loss/updates"] < 10 * 2


def test_target_kl_stops_after_epoch(signal_game):
    class MovingTeacher:
        """An updater that only reports the change of the policy."""

        def __init__(self, moved):
            self.moved = [torch.tensor(kl, dtype=torch.float64) for kl in moved]

        def step(self, batch, loss):
            return {"kl": self.moved.pop(0)}

    _, ppo, _ = make(signal_game(), target_kl=0.25)
    epochs = [[{"advantage": torch.ones(2)}] * 2] * 3
    records = ppo.run_epochs(MovingTeacher([0.9, 0.25, 0.1, 0.5, 0.0, 0.0]), epochs)
    assert [float(record["kl"]) for record in records] == [0.9, 0.25, 0.1, 0.5]


def test_networks_have_updaters(signal_game):
    _, ppo, collector = make(signal_game(), share=False)
    rollout = collector.collect(16, Seeds(1).torch("actions"))
    with pytest.raises(ValueError, match="shorter"):
        ppo.fit(rollout, *ppo.estimate_advantages(rollout), Seeds(0).torch("minibatches"), ppo.updaters[:1])


@pytest.mark.parametrize("share", [True, False])
def test_advantages_are_normalized_over_rollout(signal_game, share):
    """Compare with given normalized advantages; each network has its own normalization."""
    updated = []
    for is_normalized in (True, False):
        changes = {"normalization_scope": "rollout"} if is_normalized else {"normalize_advantage": False}
        policy, ppo, collector = make(
            signal_game(n_envs=4), share=share, advantage_eps=0.1, minibatch_size=7, **changes
        )
        rollout = collector.collect(16, Seeds(1).torch("actions"))
        advantage, target = ppo.estimate_advantages(rollout)
        if not is_normalized:
            axes = (0, 1, 2) if share else (0, 1)
            deviation = advantage.std(axes, keepdim=True) + 0.1
            advantage = (advantage - advantage.mean(axes, keepdim=True)) / deviation
        ppo.fit(rollout, advantage, target, Seeds(0).torch("minibatches"), ppo.updaters)
        updated.append(torch.nn.utils.parameters_to_vector(policy.parameters()).detach())
    torch.testing.assert_close(*updated, rtol=1e-4, atol=1e-6)


def test_partial_minibatches_are_dropped(signal_game):
    _, ppo, collector = make(signal_game(n_envs=4), minibatch_size=60, drop_last=True, epochs=3)
    rollout = collector.collect(16, Seeds(1).torch("actions"))  # of two agents: 128 samples
    assert ppo.update(rollout, Seeds(0).torch("minibatches"))["loss/updates"] == 6
    _, ppo, _ = make(signal_game(n_envs=4), minibatch_size=129, drop_last=True)
    with pytest.raises(ConfigError, match="128 samples"):
        ppo.update(rollout, Seeds(0).torch("minibatches"))


@pytest.mark.parametrize("changes", [{}, {"share": False}, {"joint_ratio": True}], ids=str)
@pytest.mark.parametrize("size", [1, 7, 30, 32])
def test_minimum_steps_fill_minibatch(signal_game, changes, size):
    _, ppo, collector = make(signal_game(n_envs=4), minibatch_size=size, drop_last=True, epochs=1, **changes)
    min_steps = ppo.min_rollout_steps(4)
    for steps in {min_steps, max(1, min_steps - 1)}:
        rollout = collector.collect(steps, Seeds(1).torch("actions"))
        if steps == min_steps:
            assert ppo.update(rollout, Seeds(0).torch("minibatches"))["loss/updates"] >= 1
        else:
            with pytest.raises(ConfigError):
                ppo.update(rollout, Seeds(0).torch("minibatches"))
    _, ppo, _ = make(signal_game(n_envs=4), minibatch_size=size, **changes)
    assert ppo.min_rollout_steps(4) == 1


def test_teacher_adds_loss(signal_game):
    env = signal_game()
    _, ppo, collector = make(env, teacher=AlwaysZero(weight=50.0))
    metrics = train(ppo, collector, 30)
    rollout = collector.collect(32, Seeds(9).torch("actions"), learn=False)
    assert (rollout.action == 0).float().mean() > 0.9 and metrics["teacher/loss"] < 0.3


def test_resume_mid_training_is_exact(signal_game):
    env, twin = signal_game(), signal_game(seed=4)
    policy, ppo, collector = make(env)
    train(ppo, collector, 2)
    policy2, ppo2, collector2 = make(twin)
    policy2.load_state_dict(policy.state_dict())
    ppo2.load_state_dict(copy.deepcopy(ppo.state_dict()))
    collector2.load_state_dict(collector.state_dict())
    train(ppo, collector, 2)
    train(ppo2, collector2, 2)
    assert all(torch.equal(x, y) for x, y in zip(policy.parameters(), policy2.parameters(), strict=True))


def test_learning_rate_decays_linearly(signal_game):
    env = signal_game(horizon=4)
    _, ppo, collector = make(env, learning_rate=1e-3, final_learning_rate=1e-4, decay_updates=3)
    rates = []
    for i in range(5):
        ppo.update(collector.collect(4, Seeds(i).torch("actions")), Seeds(i).torch("minibatches"))
        rates += [updater.optimizer.param_groups[0]["lr"] for updater in ppo.updaters]
        saved = ppo.state_dict()
        _, ppo, _ = make(env, learning_rate=1e-3, final_learning_rate=1e-4, decay_updates=3)
        ppo.load_state_dict(saved)
    assert rates == pytest.approx([1e-3, 7e-4, 4e-4, 1e-4, 1e-4])
