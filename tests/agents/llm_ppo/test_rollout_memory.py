"""Policies that read each text once in a rollout give, outside of one, what their weights of that moment give."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corridor import Corridor
from llmrl.agents.drrn_agent import DRRNAgent
from llmrl.agents.llm_ppo.agent import LanguagePPOAgent
from llmrl.algorithms.q_learning import QSettings
from llmrl.algorithms.societies.partitioned_policy import PartitionedPolicy
from llmrl.core.processes import ProcessGroup
from llmrl.core.seeding import Seeds
from llmrl.llms.local.lora import Lora
from llmrl.llms.local.seq2seq_scorer import Seq2SeqScorer
from llmrl.llms.local.small import make_small_model
from llmrl.networks.memo import Memo
from llmrl.rollout.collector import Collector
from llmrl.rollout.evaluate_policy import evaluate_policy
from ppo_settings import PLAIN

Q = QSettings(1e-2, 0.9, 16, 1.0, 1000, 8, None, 1.0, 5.0, True)
PPO = replace(PLAIN, learning_rate=1e-2, gamma=0.99, epochs=1, minibatch_size=None, value_clip=None)
KINDS = ["drrn", "llm_ppo"]


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """A maker of agents that read a corridor."""
    env, folder = Corridor(16), tmp_path_factory.mktemp("small")
    texts = [str(text) for text in env.reset(seed=0)["prompt"].ravel()]
    make_small_model(
        folder, texts + list(env.spec.action_names) * 20, "seq2seq", width=16, layers=1, heads=2, vocabulary=300
    )

    def made(kind, env):
        if kind == "drrn":
            return DRRNAgent(env.spec, Seeds(0), "cpu", "prompt", 16, 100, 1.0, Q)
        settings = ("prompt", "scores", 1.0, "full", Lora(), [8], "relu", "float32", False, 4096, 0.0, False, None)
        return LanguagePPOAgent(
            env.spec, Seeds(0), "cpu", Seq2SeqScorer(str(folder)), ProcessGroup(), False, *settings, ppo=PPO
        )

    return made


def counted(agent):
    """The texts that the network of `agent` reads from now on, in order."""
    read, policy = [], agent.policy
    compute = policy._memo._compute

    def counting(texts):
        read.extend(texts)
        return compute(texts)

    policy._memo._compute = counting
    return read


def truth(agent, observation):
    """Logits and values as an agent gives them that was made anew with the same weights."""
    fresh = copy.deepcopy(agent.policy)
    act = fresh.act(observation, greedy=True)
    return act.logits, fresh.values(observation)


def shrink(policy):
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.mul_(0.5)


def by_fused_optimizer(policy):
    parameters = list(policy.network.parameters())
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(parameters, lr=0.1, fused=True).step()


def through_data(policy):
    for parameter in policy.network.parameters():
        parameter.data.mul_(0.5)


def by_other_data(policy):
    for parameter in policy.network.parameters():
        parameter.data = parameter.data * 0.5


def by_loading(policy):
    policy.network.load_state_dict({name: x * 0.5 for name, x in policy.network.state_dict().items()})


WRITES = [shrink, by_fused_optimizer, through_data, by_other_data, by_loading]


@pytest.mark.slow
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", KINDS)
def test_whoever_changes_the_weights_the_next_output_is_theirs(make, kind, write):
    env = Corridor(4)
    agent, generator = make(kind, env), torch.Generator().manual_seed(0)
    observation = env.reset(seed=0)
    for same in (generator, None):
        before = agent.policy.act(observation, generator=same)
        write(agent.policy)
        after = agent.policy.act(observation, generator=same)
        logits, value = truth(agent, observation)
        assert (before.logits - logits).abs().max() > 1e-3
        torch.testing.assert_close(after.logits, logits, rtol=0, atol=0)
        torch.testing.assert_close(agent.policy.values(observation), value, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_learner_may_be_called_by_anybody_between_rollouts(make, kind):
    """With one generator for all rollouts, and without the agent's own `update`."""
    env = Corridor(8)
    agent, generator = make(kind, env), torch.Generator().manual_seed(0)
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(0)
    for i in range(3):
        rollout = collector.collect(8, generator)
        if kind == "drrn":
            transitions = agent._transitions(rollout)
            agent._learner.learn(transitions, 8, agent.policy.actions, Seeds(i).torch("x"))
        else:
            agent._ppo.update(rollout, Seeds(i).torch("x"))
        observation = env.observe()
        torch.testing.assert_close(agent.policy.values(observation), truth(agent, observation)[1], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_reads_each_text_once_and_begins_with_none(make, kind):
    """As after a resume: else runs with one and without would read other texts at once, and round differently."""
    env = Corridor(8)
    agent, generator = make(kind, env), torch.Generator().manual_seed(0)
    read, collector = counted(agent), Collector(env, agent.policy, "cpu")
    collector.reset(0)
    for _ in range(3):
        read.clear()
        rollout = collector.collect(8, generator)
        met = {text for step in rollout.observation["prompt"].tolist() for row in step for text in row}
        assert len(set(read)) == len(read) >= len(met) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_and_resumed_with_one_generator_outputs_are_the_same_bit_for_bit(make, kind):
    generator = torch.Generator().manual_seed(0)
    env = Corridor(8)
    agent = make(kind, env)
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(0)
    agent.update(collector.collect(5, generator), Seeds(0).torch("minibatches"))
    state = copy.deepcopy({"agent": agent.state_dict(), "games": collector.state_dict()})
    drawn = generator.get_state()
    whole = collector.collect(5, generator).copy()
    other = Corridor(8)
    resumed = make(kind, other)
    resumed.load_state_dict(state["agent"])
    goes_on = Collector(other, resumed.policy, "cpu")
    goes_on.reset(1)
    goes_on.load_state_dict(state["games"])
    rollout = goes_on.collect(5, torch.Generator().set_state(drawn))
    assert torch.equal(rollout.action, whole.action)
    assert torch.equal(rollout.log_prob, whole.log_prob) and torch.equal(rollout.value, whole.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_of_an_evaluation_reads_each_text_once(make, kind):
    env = Corridor(8, horizon=16)
    agent = make(kind, env)
    read = counted(agent)
    evaluate_policy(Collector(env, agent.policy, "cpu"), 8, Seeds(0))
    assert len(set(read)) == len(read) > 3


def test_who_stands_between_passes_it_on(make):
    env = Corridor(8)
    agent = make("drrn", env)
    policy = PartitionedPolicy([agent.policy, agent.policy], 4)
    observation = env.reset(seed=0)
    with policy.unchanged():
        before = policy.act(observation, None, torch.Generator())
        by_fused_optimizer(agent.policy)
        assert torch.equal(policy.act(observation, None, torch.Generator()).logits, before.logits)
    assert not torch.equal(policy.act(observation, None, torch.Generator()).logits, before.logits)


def test_questions_beside_a_rollout_are_no_states_that_it_reached(make):
    env = Corridor(4, horizon=3)
    agents = [make("drrn", env) for _ in range(2)]
    found = []
    for i, agent in enumerate(agents):
        collector = Collector(env, agent.policy, "cpu")
        collector.reset(0)
        rollout = collector.collect(8, Seeds(0).torch("actions"))
        if i:
            agent.policy.values(Corridor(4, length=9).observe())
        found.append(agent._transitions(rollout))
    assert found[0].next_prompt == found[1].next_prompt


class Halves:
    """A network of one number, and how often it was asked for what."""

    def __init__(self):
        self.weight, self.asked = 1.0, []

    def __call__(self, keys):
        self.asked.append(list(keys))
        return torch.tensor(keys) * self.weight, torch.tensor([[key, self.weight] for key in keys])


@settings(max_examples=60)
@given(
    spans=st.lists(
        st.tuples(st.booleans(), st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), max_size=4)), max_size=5
    )
)
def test_a_memo_is_the_function_itself(spans):
    network = Halves()
    memo = Memo(network)
    for promised, calls in spans:
        network.asked.clear()
        network.weight /= 2
        with memo.unchanged() if promised else nullcontext():
            for keys in calls:
                if not promised:
                    network.weight /= 2
                numbers, pairs = memo(keys)
                assert numbers.tolist() == [key * network.weight for key in keys]
                assert pairs.tolist() == [[key, network.weight] for key in keys]
        asked = [key for keys in network.asked for key in keys]
        expected = [list(dict.fromkeys(keys)) for keys in calls]
        assert asked == (list(dict.fromkeys(chain(*calls))) if promised else list(chain(*expected)))
    assert not memo.open
