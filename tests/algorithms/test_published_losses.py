"""Presets that claim a published treatment: the gradients they apply are those of the published losses.

Each loss is written out from the publication's own equations, with its own coefficients, and shares with the agents
that are tested nothing but the forward pass of their networks.
"""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch.func import functional_call

from experiments import compose
from llmrl.algorithms.minibatches import SequenceMinibatches
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_parts
from llmrl.experiment.resources import RunResources
from llmrl.llms.local.small import SmallModelShape, make_small_model
from llmrl.rollout.collector import Collector
from some import mark_long_except


@pytest.fixture
def agent_parts():
    """Return a function that builds parts of composed presets; close them at the end."""
    segments = []

    def build(*overrides):
        config = compose(*overrides)
        parts = build_parts(config, RunResources(config, build_used_model).model)
        segments.append(parts)
        return config, parts

    yield build
    for parts in segments:
        parts.close()


def collected(config, parts, steps=None, rewards=True):
    """Collect a rollout, with random rewards if requested, because real rewards would be rare."""
    channels = getattr(parts.teacher, "channels", ())
    collector = Collector(parts.env, parts.agents[0].policy, "cpu", channels)
    collector.reset(3)
    rollout = collector.collect(steps or config["learn"]["rollout_steps"], Seeds(1).torch("actions"))
    if rewards:
        random_rewards = np.random.default_rng(0).normal(size=tuple(rollout.reward.shape)).astype("float32")
        rollout = dataclasses.replace(rollout, reward=torch.from_numpy(random_rewards))
    return rollout


def minibatches():
    return Seeds(2).torch("minibatches")


def clip_gradients(gradients, largest):
    norm = sum(g.square().sum() for g in gradients) ** 0.5
    return [g * min(1.0, float(largest / (norm + 1e-6))) for g in gradients]


class Watch:
    """Compares the gradient at each step of an optimizer with the one of a loss that is written out.

    Args:
        network: what is trained.
        optimizer: its.
        loss: of the number of the step, from 0.
        largest: norm to which the published code scales gradients down.
        compared: numbers of the steps that are looked at.
    """

    def __init__(self, network, optimizer, loss, largest, compared_updates=range(100)):
        self.named = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.loss, self.largest, self.steps = loss, largest, 0
        self.compared, self.ratios = compared_updates, []
        optimizer.register_step_pre_hook(self._compare)

    def _compare(self, optimizer, *_):
        if self.steps not in self.compared:
            self.steps += 1
            return
        parameters = list(self.named.values())
        gradients = torch.autograd.grad(self.loss(self.steps), parameters, allow_unused=True)
        expected = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        expected = dict(zip(self.named, clip_gradients(expected, self.largest), strict=True))
        applied = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self.named.items()}
        squared_norm = sum(g.square().sum() for g in expected.values())
        for is_critic in (True, False):
            group_names = [name for name in self.named if ("critic" in name) == is_critic]
            if squares := sum(expected[name].square().sum() for name in group_names):
                product = sum((applied[name] * expected[name]).sum() for name in group_names)
                self.ratios.append((is_critic, float(product / squares)))
        self.steps += 1
        for is_critic, ratio in self.ratios:
            assert ratio == pytest.approx(1.0, abs=5e-5), (self.steps, "critic" if is_critic else "policy")
        gap = sum((applied[name] - expected[name]).square().sum() for name in self.named)
        assert gap <= 1e-8 * squared_norm, self.steps


def clipped_surrogate(log_prob, old, advantage, clip):
    ratio = (log_prob - old).exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def larger_squared_error(value, old, target, clip):
    """Return the mean of the larger of the two squared errors, without the factor 1/2."""
    clipped = old + (value - old).clamp(-clip, clip)
    return torch.maximum((value - target) ** 2, (clipped - target) ** 2).mean()


def policy_loss(logits, action):
    """Log pi of the actions, and the mean entropy."""
    log_probs = logits.log_softmax(-1)
    return log_probs.gather(-1, action[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(-1).mean()


def monte_carlo(rollout, gamma):
    """Return discounted sums of rewards, with V of the last state at a horizon and at the end of the rollout."""
    returns = torch.zeros_like(rollout.reward)
    steps, games, agents = rollout.reward.shape
    for game in range(games):
        for agent in range(agents):
            to_go = 0.0
            for t in reversed(range(steps)):
                if rollout.terminated[t, game]:
                    to_go = 0.0
                elif rollout.truncated[t, game] or t == steps - 1:
                    to_go = rollout.next_value[t, game, agent]
                to_go = rollout.reward[t, game, agent] + gamma * to_go
                returns[t, game, agent] = to_go
    return returns


def truncated_gae(rollout, gamma, lam):
    """Compute generalized advantages with a time limit as a normal end.

    Next values are the recorded ones, except for V after the last state.
    """
    steps = len(rollout.reward)
    advantage = torch.zeros_like(rollout.reward)
    after = torch.zeros_like(rollout.reward[0])
    for t in reversed(range(steps)):
        goes_on = 1.0 - (rollout.terminated[t] | rollout.truncated[t]).float()[:, None]
        next_value = rollout.next_value[t] if t == steps - 1 else rollout.value[t + 1]
        delta = rollout.reward[t] + gamma * next_value * goes_on - rollout.value[t]
        after = delta + gamma * lam * goes_on * after
        advantage[t] = after
    return advantage


def shuffled(n, size, epochs, keep_last):
    """Return the samples of each minibatch of an update."""
    generator, minibatch_list = minibatches(), []
    for _ in range(epochs):
        order = torch.randperm(n, generator=generator)
        starts = range(0, n if keep_last else n - size + 1, size)
        minibatch_list += [{"action": order[start : start + size]} for start in starts]
    return minibatch_list


def stretches(rollout, size, epochs):
    """Return the minibatches for a recurrent network, with the starts of their sequences."""
    games, generator = rollout.reward.shape[1], minibatches()
    index = {"action": torch.arange(rollout.reward.numel())}
    sequences = SequenceMinibatches(
        index, index["action"], size, rollout.episode_start, rollout.state.reshape(games, -1)
    )
    return [
        batch
        for _ in range(epochs)
        for batch in sequences.iterate_batches(torch.randperm(sequences.n_units, generator=generator))
    ]


def outputs(network, inputs, indices):
    """Return the logits and values of some samples."""
    index = indices["action"]
    inputs_selected = {name: x[index] for name, x in inputs.items()}
    return network(inputs_selected | {name: x for name, x in indices.items() if name != "action"})


def record_update(agent, rollout, minibatch_list, loss, compared_updates=None):
    """Record an update of an agent with one network, with `loss(logits, value, index)` for each minibatch."""
    learner = agent._ppo
    [(network, agents)] = learner.policy.list_networks()
    inputs = learner.build_samples(rollout, agents)
    watch = Watch(
        network,
        learner.updaters[0].optimizer,
        lambda step: loss(*outputs(network, inputs, minibatch_list[step]), minibatch_list[step]["action"]),
        0.5,
        range(len(minibatch_list)) if compared_updates is None else compared_updates,
    )
    metrics = agent.update(rollout, minibatches())
    assert watch.steps == len(minibatch_list) == metrics["loss/updates"]
    assert {is_critic for is_critic, _ in watch.ratios} == {True, False}


class TestTeacher:
    """LLM4Teach (arXiv 2311.13373) as released."""

    @staticmethod
    def loss(rollout, advice, weight):
        returns = monte_carlo(rollout, 0.99).flatten()
        advantage = returns - rollout.value.flatten()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-5)
        action, old, old_value = (x.flatten() for x in (rollout.action, rollout.log_prob, rollout.value))
        advice = advice.flatten(0, 2)

        def loss_terms(logits, value, i):
            log_prob, entropy = policy_loss(logits, action[i])
            teacher_loss = -(advice[i] * logits.log_softmax(-1)).sum(-1).mean()
            error = larger_squared_error(value, old_value[i], returns[i], 0.2)
            policy = -clipped_surrogate(log_prob, old[i], advantage[i], 0.2)
            return policy + 0.5 * error - 0.001 * entropy + weight * teacher_loss

        return loss_terms

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "room", mark_long_except(["colored_doorkey"], ["simple_doorkey", "lava_doorkey", "colored_doorkey", "two_door"])
    )
    def test_convolutions(self, agent_parts, room):
        words = ("experiment=teacher/rooms", f"env={room}", "treatment=llm4teach")
        config, parts = agent_parts(*words, "env.n_envs=3", "env.horizon=40")
        rollout = collected(config, parts, steps=60)
        assert rollout.truncated.any()
        advice = copy.deepcopy(parts.teacher).advise(rollout)["advice"]
        # 180 samples: one full minibatch of 128 an epoch, and the rest is left out.
        minibatch_list = shuffled(180, 128, 3, keep_last=False)
        assert len(minibatch_list) == 3
        record_update(parts.agents[0], rollout, minibatch_list, self.loss(rollout, advice, 10.0))

    @pytest.mark.slow
    def test_memory(self, agent_parts):
        """Use games so long that a minibatch is one episode, which the released code does not pad."""
        config, parts = agent_parts(
            "experiment=teacher/rooms", "treatment=llm4teach", "agent=student_lstm", "env.n_envs=2"
        )
        rollout = collected(config, parts, steps=130)
        advice = copy.deepcopy(parts.teacher).advise(rollout)["advice"]
        minibatch_list = stretches(rollout, 128, 3)
        assert [len(minibatch["action"]) for minibatch in minibatch_list] == 6 * [130]
        record_update(parts.agents[0], rollout, minibatch_list, self.loss(rollout, advice, 10.0))


class TestGrounding:
    """GLAM (Carta et al. 2023, arXiv 2302.02662), each value regressed to its own return."""

    @staticmethod
    def loss(rollout):
        advantage = truncated_gae(rollout, 0.99, 0.99)
        target = (advantage + rollout.value).flatten()
        advantage = advantage.flatten()
        action, old, old_value = (x.flatten() for x in (rollout.action, rollout.log_prob, rollout.value))

        def loss_terms(logits, value, i):
            log_prob, entropy = policy_loss(logits, action[i])
            error = larger_squared_error(value, old_value[i], target[i], 0.2)
            return -clipped_surrogate(log_prob, old[i], advantage[i], 0.2) - 0.01 * entropy + 0.5 * error

        return loss_terms

    @pytest.fixture(scope="class")
    def model(self, tmp_path_factory):
        texts = ["Goal of the agent: go to the red ball", "turn left, turn right, go forward, pick up, drop, toggle"]
        folder = tmp_path_factory.mktemp("models") / "seq2seq"
        make_small_model(
            folder, texts, "seq2seq", shape=SmallModelShape(width=16, layers=1, heads=2, vocabulary=300, longest=4096)
        )
        return folder

    @pytest.mark.slow
    @pytest.mark.parametrize("treatment", mark_long_except(["gflan"], ["gflan", "npa"]))
    def test_language_models(self, agent_parts, model, treatment):
        """Check scores and a head; the other models differ in the source of their weights."""
        words = ("experiment=grounding/mixed", f"treatment={treatment}", f"llm.model={model}")
        config, parts = agent_parts(*words, "env.n_envs=4", "env.history=1", "env.horizon=10")
        rollout = collected(config, parts, steps=17)
        assert rollout.truncated.any()
        # 68 samples: a minibatch of 64 and one of 4, four times.
        minibatch_list = shuffled(68, 64, 4, keep_last=True)
        assert [len(minibatch["action"]) for minibatch in minibatch_list] == 4 * [64, 4]
        record_update(parts.agents[0], rollout, minibatch_list, self.loss(rollout), compared_updates=(0, 7))

    @pytest.mark.parametrize("treatment", ["gflan_lora", "aflan", "npae", "npe"])
    def test_language_model_updates_agree(self, treatment):
        configs = [compose("experiment=grounding/mixed", f"treatment={name}") for name in ("gflan", treatment)]
        ppo = [config["agent"]["ppo"] for config in configs]
        assert {name for name, x in ppo[0].items() if x != ppo[1][name]} <= {"learning_rate"}

    def test_symbolic(self, agent_parts):
        config, parts = agent_parts(
            "experiment=grounding/mixed", "treatment=symbolic_published", "env.n_envs=4", "env.horizon=25",
            "agent.ppo.minibatch_size=80",
        )  # fmt: skip
        rollout = collected(config, parts)
        assert rollout.truncated.any() and len(rollout.reward) == 40
        record_update(parts.agents[0], rollout, stretches(rollout, 80, 4), self.loss(rollout))

    @pytest.mark.slow
    def test_drrn(self, agent_parts):
        """Check Huber's loss of width 1 on r + 0.9 max Q, from the network itself, with gradient norm 5."""
        config, parts = agent_parts("experiment=grounding/mixed", "treatment=drrn_published", "env.horizon=3")
        agent, rollout = parts.agents[0], collected(config, parts)
        learner, network = agent._learner, agent.policy.network
        assert rollout.truncated.any() and rollout.reward.numel() == 128

        def loss(_):
            from llmrl.networks.drrn import pad_texts

            batch = learner.replay_buffer.sample(64, minibatches())
            actions = pad_texts(agent.policy.action_texts)
            errors = []
            for k in range(64):
                with torch.no_grad():
                    best = 0.0 if batch.terminal[k] else network(pad_texts([batch.next_prompt[k]]), actions).max()
                q = network(pad_texts([batch.prompt[k]]), actions)[0, batch.action[k]]
                gap = (q - float(batch.reward[k]) - 0.9 * best).abs()
                errors.append(0.5 * gap**2 if gap < 1 else gap - 0.5)
            return sum(errors) / 64

        watch = Watch(network, learner.optimizer, loss, 5.0)
        agent.update(rollout, minibatches())
        assert watch.steps == 1  # for 128 frames


class TestMechanismDesign:
    """Large Legislative Models (arXiv 2410.08345) as released."""

    @staticmethod
    def loss(rollout):
        advantage = truncated_gae(rollout, 0.998, 0.98)
        target = (advantage + rollout.value).flatten()
        advantage = advantage.flatten()
        action, old, old_value = (x.flatten() for x in (rollout.action, rollout.log_prob, rollout.value))

        def loss_terms(logits, value, i):
            log_prob, entropy = policy_loss(logits, action[i])
            normal = (advantage[i] - advantage[i].mean()) / (advantage[i].std() + 1e-8)
            half = 0.5 * larger_squared_error(value, old_value[i], target[i], 0.2)
            return -clipped_surrogate(log_prob, old[i], normal, 0.2) - 0.025 * entropy + 0.5 * half

        return loss_terms

    def test_escape_room(self, agent_parts):
        config, parts = agent_parts("experiment=legislative/escape_room", "principal=random")
        rollout = collected(config, parts, steps=5)
        assert rollout.truncated[-1].all()
        record_update(parts.agents[0], rollout, shuffled(25, 128, 4, keep_last=True), self.loss(rollout))

    @pytest.mark.slow
    @pytest.mark.parametrize("game", ["harvest", "cleanup"])
    def test_melting_pot(self, agent_parts, game):
        """Use the native engine and short episodes; the smaller last minibatch is used, too."""
        config, parts = agent_parts(
            f"experiment=legislative/{game}", "principal=random", "env.engine=native", "env.horizon=20"
        )
        rollout = collected(config, parts, steps=20)
        assert rollout.truncated[-1].all() and not rollout.truncated[:-1].any()
        minibatch_list = shuffled(140, 128, 4, keep_last=True)
        assert [len(minibatch["action"]) for minibatch in minibatch_list] == 4 * [128, 12]
        record_update(parts.agents[0], rollout, minibatch_list, self.loss(rollout))

    def test_vanilla_policy_gradient(self, agent_parts):
        """Check grad log pi times the return, with one network per agent as in the paper.

        Scaling of returns, entropy and the gradient norm are our choices.
        """
        config, parts = agent_parts("experiment=legislative/escape_room_paper", "principal=random", "env.n_envs=6")
        agent, rollout = parts.agents[0], collected(config, parts, steps=5)
        watches = []
        for (network, agents), updater in zip(
            agent.learner.policy.list_networks(), agent.learner.updaters, strict=True
        ):
            inputs = agent.learner.build_samples(rollout, agents)
            reward, returns = rollout.reward[:, :, agents], torch.zeros(5, 6, 1)
            for t in range(5):
                for k in range(t, 5):
                    returns[t] += 0.998 ** (k - t) * reward[k]
            weight = ((returns - returns.mean()) / (returns.std() + 1e-8)).flatten()

            def loss(_, network=network, inputs=inputs, weight=weight):
                log_prob, entropy = policy_loss(network(inputs)[0], inputs["action"])
                return -(log_prob * weight).mean() - 0.025 * entropy

            watches.append(Watch(network, updater.optimizer, loss, 0.5))
        agent.update(rollout, minibatches())
        assert [watch.steps for watch in watches] == 5 * [1]

    @pytest.mark.parametrize("payoff", [45.0, -5.0])
    def test_dual_rl(self, agent_parts, payoff):
        _, parts = agent_parts("experiment=legislative/escape_room", "treatment=dual_rl")
        principal = parts.principal
        principal.ask(context=1, n=1)
        proposal, network = principal.last_proposal, principal.network

        def loss(_):
            logits, value = network(proposal["observation"])
            log_probs = logits.log_softmax(-1)
            choice_log_prob = log_probs.gather(-1, proposal["choice"][0][:, None]).sum()
            entropy = -(log_probs.exp() * log_probs).sum()  # of all heads
            advantage = payoff - proposal["value"]
            half = 0.5 * larger_squared_error(value, proposal["value"], torch.tensor(payoff), 0.2)
            policy = -clipped_surrogate(choice_log_prob, proposal["log_prob"][0], advantage, 0.2)
            return policy - 0.2 * entropy + 0.5 * half

        watch = Watch(network, principal.updater.optimizer, loss, 0.5)
        spec = parts.env.spec
        principal.tell(
            [
                Outcome(
                    vector=principal.previous[0],
                    value=payoff,
                    values=np.array([payoff]),
                    standard_error=None,
                    context=1,
                    returns=np.full(spec.n_agents, payoff),
                    trajectories={name: np.zeros(5) for name in spec.metrics},
                    summaries=dict.fromkeys(spec.metrics, 0.0),
                )
            ]
        )
        assert watch.steps == 4

    @pytest.mark.parametrize("past", [0.0, -3.0])
    def test_metagrad(self, agent_parts, past):
        """Check Adam on the losses of actor and critic, each clipped separately.

        The outer loss is the sum of log pi of all agents times the discounted payoffs to go less the mean of past ones.
        """
        _, parts = agent_parts("experiment=legislative/escape_room", "treatment=metagrad")
        env, agent, gamma = parts.env, parts.agents[0], 0.998
        tau = parts.principal.ask(context=0)[0]
        collector, rollouts = Collector(env, agent.policy, "cpu"), []
        settings = dataclasses.replace(parts.principal.meta_settings, past_return=past)
        learner = agent.meta_learner(tau, settings)
        [(network, agents)] = agent.learner.policy.list_networks()
        weights = {n: p.detach().clone().requires_grad_() for n, p in network.named_parameters() if p.requires_grad}
        for phase in ("adapt", "validate"):
            env.set_mechanism(np.tile(tau, (1, 1)))
            collector.reset(11)
            rollouts.append(collector.collect(5, Seeds(4).torch(phase), keep_reward_jacobian=True).copy())
            if phase == "adapt":
                learner.update(rollouts[0], minibatches())
        adapt, validate = rollouts
        payoff = float(validate.base_reward.sum())
        outcome = Outcome(
            vector=tau, value=payoff, values=np.array([payoff]), standard_error=None, context=0,
            returns=np.zeros(5), trajectories={}, summaries={},
        )  # fmt: skip
        gradient = learner.gradient([validate], env.spec.objective, 0.0, outcome)

        values = torch.tensor(tau, dtype=torch.float32, requires_grad=True)
        zero = values - values.detach()
        reward = adapt.reward + adapt.reward_jacobian.float() @ zero
        adapt = dataclasses.replace(adapt, reward=reward)
        advantage = truncated_gae(adapt, gamma, 0.98)
        target = (advantage.detach() + adapt.value).flatten()
        inputs = agent.learner.build_samples(adapt, agents)
        old, old_value, weight = adapt.log_prob.flatten(), adapt.value.flatten(), advantage.flatten()
        weight = (weight - weight.mean()) / (weight.std() + 1e-8)
        first, second = ({name: torch.zeros_like(p) for name, p in weights.items()} for _ in range(2))
        for step in range(1, 5):
            logits, value = functional_call(network, weights, (inputs,))
            log_prob, entropy = policy_loss(logits, inputs["action"])
            actor = -clipped_surrogate(log_prob, old, weight, 0.2) - 0.025 * entropy
            critic = 0.5 * 0.5 * larger_squared_error(value, old_value, target, 0.2)
            for loss, part in ((actor, "actor."), (critic, "critic.")):
                part_names = [name for name in weights if name.startswith(part)]
                gradients = torch.autograd.grad(loss, [weights[name] for name in part_names], create_graph=True)
                norm = sum(g.square().sum() for g in gradients).sqrt()
                for name, g in zip(part_names, gradients, strict=True):
                    g = g * (0.5 / (norm + 1e-6)).clamp(max=1.0)
                    first[name] = 0.9 * first[name] + 0.1 * g
                    second[name] = 0.999 * second[name] + 0.001 * g.square()
                    root = (second[name] / (1 - 0.999**step)).clamp_min(1e-20).sqrt()
                    weights[name] = weights[name] - 1e-3 * first[name] / (1 - 0.9**step) / (root + 1e-5)
        for name, p in network.named_parameters():
            if name in weights:
                torch.testing.assert_close(p, weights[name], rtol=1e-4, atol=1e-6)

        logits, _ = functional_call(network, weights, (agent.learner.build_samples(validate, agents),))
        log_prob, _ = policy_loss(logits, validate.action.flatten())
        payoffs, loss = validate.base_reward.sum(-1)[:, 0], 0.0
        for t in range(5):
            to_go = sum(gamma ** (k - t) * payoffs[k] for k in range(t, 5))
            loss = loss - log_prob.view(5, 5)[t].sum() * (to_go - past)
        [expected] = torch.autograd.grad(loss, values)
        assert expected.norm() > 0
        np.testing.assert_allclose(-gradient, expected.numpy(), rtol=1e-3, atol=1e-3 * float(expected.norm()))
