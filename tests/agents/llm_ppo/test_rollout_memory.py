"""Caching of texts within rollouts, with outputs of the latest weights outside of rollouts."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corridor import Corridor
from llmrl.agents.drrn_agent import DRRNAgent, DRRNSettings
from llmrl.agents.llm_ppo.agent import LanguagePPOAgent, LanguagePPOSettings
from llmrl.algorithms.q_learning import QSettings
from llmrl.algorithms.societies.partitioned_policy import PartitionedPolicy
from llmrl.core.processes import ProcessGroup
from llmrl.core.seeding import Seeds
from llmrl.llms.local.lora import Lora
from llmrl.llms.local.small import SmallModelShape, make_small_model
from llmrl.networks.memo import Memo
from llmrl.rollout.collector import Collector, evaluate_policy
from models import make_seq2seq_scorer
from ppo_settings import PLAIN

Q = QSettings(1e-2, 0.9, 16, 1.0, 1000, 8, None, 1.0, 5.0, True)
PPO = replace(PLAIN, learning_rate=1e-2, gamma=0.99, epochs=1, minibatch_size=None, value_clip=None)
KINDS = ["drrn", "llm_ppo"]


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Return a factory of agents that read a corridor."""
    env, folder = Corridor(16), tmp_path_factory.mktemp("small")
    texts = [str(text) for text in env.reset(seed=0)["prompt"].ravel()]
    make_small_model(
        folder,
        texts + list(env.spec.action_names) * 20,
        "seq2seq",
        shape=SmallModelShape(width=16, layers=1, heads=2, vocabulary=300),
    )

    def make_part(kind, env):
        if kind == "drrn":
            return DRRNAgent(env.spec, DRRNSettings("prompt", 16, 100, 1.0, Q), Seeds(0), "cpu")
        network = ("prompt", "scores", 1.0, [8], "relu", "float32", 4096)
        training = {"tune": "full", "lora": Lora(), "recompute": False, "kl_coefficient": 0.0}
        settings = LanguagePPOSettings(*network, **training, init_from=None, ppo=PPO)
        scorer = make_seq2seq_scorer(folder)
        return LanguagePPOAgent(env.spec, settings, Seeds(0), "cpu", scorer, ProcessGroup(), has_principal=False)

    return make_part


def count_calls(agent):
    """Record the texts that the network of `agent` reads from now on, in order."""
    read, policy = [], agent.policy
    compute = policy._output_memo._compute

    def counting(texts):
        read.extend(texts)
        return compute(texts)

    policy._output_memo._compute = counting
    return read


def compute_expected_outputs(agent, observation):
    """Return the logits and values of a new agent with the same weights."""
    fresh = copy.deepcopy(agent.policy)
    act = fresh.act(observation, greedy=True)
    return act.logits, fresh.values(observation)


def shrink(policy):
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.mul_(0.5)


def step_fused_optimizer(policy):
    parameters = list(policy.network.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(parameters, lr=0.1, fused=True).step()


def change_data(policy):
    for parameter in policy.network.parameters():
        parameter.data.mul_(0.5)


def replace_data(policy):
    for parameter in policy.network.parameters():
        parameter.data = parameter.data * 0.5


def load_state(policy):
    policy.network.load_state_dict({name: x * 0.5 for name, x in policy.network.state_dict().items()})


WRITES = [shrink, step_fused_optimizer, change_data, replace_data, load_state]


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_weight_change_invalidates_outputs(make, kind, write):
    env = Corridor(4)
    agent, generator = make(kind, env), torch.Generator().manual_seed(0)
    observation = env.reset(seed=0)
    for shared_generator in (generator, None):
        initial_outputs = agent.policy.act(observation, generator=shared_generator)
        write(agent.policy)
        after = agent.policy.act(observation, generator=shared_generator)
        logits, value = compute_expected_outputs(agent, observation)
        assert (initial_outputs.logits - logits).abs().max() > 1e-3
        torch.testing.assert_close(after.logits, logits, rtol=0, atol=0)
        torch.testing.assert_close(agent.policy.values(observation), value, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_learner_is_callable_between_rollouts(make, kind):
    """Use one generator for all rollouts and do not call the agent's own `update`."""
    env = Corridor(8)
    agent, generator = make(kind, env), torch.Generator().manual_seed(0)
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(0)
    for i in range(3):
        rollout = collector.collect(8, generator)
        if kind == "drrn":
            transitions = agent._build_transitions(rollout)
            agent._learner.learn(transitions, 8, agent.policy.action_texts, Seeds(i).torch("x"))
        else:
            agent._ppo.update(rollout, Seeds(i).torch("x"))
        observation = env.observe()
        torch.testing.assert_close(
            agent.policy.values(observation), compute_expected_outputs(agent, observation)[1], rtol=0, atol=0
        )


@pytest.mark.parametrize("kind", KINDS)
def test_rollout_caches_texts(make, kind):
    """Read texts once after a resume, too; otherwise batches, and thus rounding, would differ between runs."""
    env = Corridor(8)
    agent, generator = make(kind, env), torch.Generator().manual_seed(0)
    read, collector = count_calls(agent), Collector(env, agent.policy, "cpu")
    collector.reset(0)
    for _ in range(3):
        read.clear()
        rollout = collector.collect(8, generator)
        texts = {text for step in rollout.observation["prompt"].tolist() for row in step for text in row}
        assert len(set(read)) == len(read) >= len(texts) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_resume_with_shared_generator_is_bit_identical(make, kind):
    generator = torch.Generator().manual_seed(0)
    env = Corridor(8)
    agent = make(kind, env)
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(0)
    agent.update(collector.collect(5, generator), Seeds(0).torch("minibatches"))
    state = copy.deepcopy({"agent": agent.state_dict(), "games": collector.state_dict()})
    generator_state = generator.get_state()
    full_rollout = collector.collect(5, generator).copy()
    second_env = Corridor(8)
    restart = make(kind, second_env)
    restart.load_state_dict(state["agent"])
    goes_on = Collector(second_env, restart.policy, "cpu")
    goes_on.reset(1)
    goes_on.load_state_dict(state["games"])
    rollout = goes_on.collect(5, torch.Generator().set_state(generator_state))
    assert torch.equal(rollout.action, full_rollout.action)
    assert torch.equal(rollout.log_prob, full_rollout.log_prob) and torch.equal(rollout.value, full_rollout.value)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_caches_texts(make, kind):
    env = Corridor(8, horizon=16)
    agent = make(kind, env)
    read = count_calls(agent)
    evaluate_policy(Collector(env, agent.policy, "cpu"), 8, Seeds(0))
    assert len(set(read)) == len(read) > 3


def test_wrappers_forward_rollout_memory(make):
    env = Corridor(8)
    agent = make("drrn", env)
    policy = PartitionedPolicy([agent.policy, agent.policy], 4)
    observation = env.reset(seed=0)
    with policy.fixed_weights():
        initial_outputs = policy.act(observation, None, torch.Generator())
        step_fused_optimizer(agent.policy)
        assert torch.equal(policy.act(observation, None, torch.Generator()).logits, initial_outputs.logits)
    assert not torch.equal(policy.act(observation, None, torch.Generator()).logits, initial_outputs.logits)


def test_additional_questions_are_not_states(make):
    env = Corridor(4, horizon=3)
    agents = [make("drrn", env) for _ in range(2)]
    outputs = []
    for i, agent in enumerate(agents):
        collector = Collector(env, agent.policy, "cpu")
        collector.reset(0)
        rollout = collector.collect(8, Seeds(0).torch("actions"))
        if i:
            agent.policy.values(Corridor(4, length=9).observe())
        outputs.append(agent._build_transitions(rollout))
    assert outputs[0].next_prompt == outputs[1].next_prompt


class HalvesNetwork:
    """A network of one number that records its inputs."""

    def __init__(self):
        self.weight, self.requests = 1.0, []

    def __call__(self, keys):
        self.requests.append(list(keys))
        return torch.tensor(keys) * self.weight, torch.tensor([[key, self.weight] for key in keys])


@settings(max_examples=60)
@given(
    spans=st.lists(
        st.tuples(st.booleans(), st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), max_size=4)), max_size=5
    )
)
def test_memo_equals_function(spans):
    network = HalvesNetwork()
    memo = Memo(network)
    for span, calls in spans:
        network.requests.clear()
        network.weight /= 2
        with memo.fixed_weights() if span else nullcontext():
            for keys in calls:
                if not span:
                    network.weight /= 2
                numbers, pairs = memo(keys)
                assert numbers.tolist() == [key * network.weight for key in keys]
                assert pairs.tolist() == [[key, network.weight] for key in keys]
        keys_read = [key for keys in network.requests for key in keys]
        expected = [list(dict.fromkeys(keys)) for keys in calls]
        assert keys_read == (list(dict.fromkeys(chain(*calls))) if span else list(chain(*expected)))
    assert not memo.is_active
