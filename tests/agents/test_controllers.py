"""Policies as functions of a few numbers: their order, their decisions, their words, and what they refuse."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.agents.controllers.tabular import QTableController, TabularController
from llmrl.agents.search_agent import LinearAgent, MLPAgent, ProjectionAgent, TabularAgent
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Controller, SearchableAgent
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, ContinuousActions
from policies import ARM, LAKE, POLE

BINS = [[-1, 1, 3], [0, 2, 2], [0.1, 0.2, 4]]
AGENTS = {
    "linear": lambda: LinearAgent(POLE),
    "without bias": lambda: LinearAgent(POLE, bias=False),
    "linear, numbers": lambda: LinearAgent(ARM),
    "mlp": lambda: MLPAgent(ARM, hidden=(5, 3)),
    "leaky mlp": lambda: MLPAgent(POLE, hidden=(4,), activation="leaky_relu", bias=False),
    "table": lambda: TabularAgent(LAKE),
    "q-table": lambda: TabularAgent(LAKE, entries="values"),
    "table of bins": lambda: TabularAgent(POLE, bins=BINS),
    "q-table of bins": lambda: TabularAgent(POLE, entries="values", bins=BINS),
    "projection": lambda: ProjectionAgent(ARM, Seeds(0), rank=2, hidden=(4,)),
}


def observations(controller, n, seed=0):
    rng = np.random.default_rng(seed)
    if controller.channel == "state":
        return rng.integers(0, 4, n)
    if isinstance(controller, TabularController | QTableController):
        return rng.normal(size=(n, 3))
    inner = getattr(controller, "inner", controller)
    return rng.normal(size=(n, inner.layers[0][0]))


def drawn(controller, n, seed=0):
    space = controller.space
    return space.rounded(np.random.default_rng(seed).uniform(space.low, space.high, (n, space.dim)))


@pytest.mark.parametrize("name", AGENTS)
def test_they_are_what_the_protocols_say(name):
    agent = AGENTS[name]()
    controller = agent.controller
    assert isinstance(agent, SearchableAgent) and isinstance(controller, Controller)
    assert [p.name for p in controller.space.parameters] == [f"params[{i}]" for i in range(controller.space.dim)]
    assert controller.layout and all(p.description for p in controller.space.parameters)
    assert agent.describe()["parameters"] == controller.space.dim


@pytest.mark.parametrize("name", AGENTS)
def test_a_game_s_action_does_not_depend_on_the_games_beside_it(name):
    """Bit for bit: evaluations share games out over processes as they like."""
    controller = AGENTS[name]().controller
    seen, parameters = observations(controller, 50), drawn(controller, 50)
    together = controller.act(seen, parameters)
    copied = pickle.loads(pickle.dumps(controller))  # noqa: S301
    for i in range(50):
        np.testing.assert_array_equal(copied.act(seen[i : i + 1], parameters[i : i + 1])[0], together[i])
    np.testing.assert_array_equal(controller.act(seen[7:30], parameters[7:30]), together[7:30])


def test_linear_weights_lie_row_by_row_and_biases_last():
    """Number i is the weight of input i div m on output i mod m (the published order)."""
    controller = LinearAgent(ARM, clip_actions=False).controller
    weights, biases = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.5, -0.5])
    flat = np.concatenate([weights.ravel(), biases])
    state = np.array([[0.1, -0.2]])
    # One of the sums is 0 but for rounding, which is not the same on all processors.
    np.testing.assert_allclose(controller.act(state, flat[None]), state @ weights + biases, atol=1e-12)
    assert controller.space.parameters[2].description == "weight of speed on shoulder"
    assert controller.space.parameters[5].description == "bias of elbow"


def test_a_choice_is_the_largest_output_and_of_equal_ones_the_first():
    controller = LinearAgent(POLE, bias=False).controller
    flat = np.array([[1.0, 0.0, 0.0, 1.0, 0.0, 0.0]])
    for state, action in (([2.0, 1.0, 0.0], 0), ([1.0, 2.0, 0.0], 1), ([1.0, 1.0, 9.0], 0)):
        assert controller.act(np.array([state]), flat).tolist() == [action]
    assert controller.act(np.zeros((1, 3)), flat).dtype == np.int64


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1.0, -2.0]),
        ({"clip_actions": False}, [4.0, -8.0]),
        ({"output": "tanh"}, [np.tanh(4), 2 * np.tanh(-8)]),
        ({"output": "leaky_relu"}, [1.0, -1.6]),
    ],
)
def test_what_outputs_become(settings, expected):
    controller = LinearAgent(ARM, **settings).controller
    flat = np.array([[4.0, 0.0, 0.0, -8.0, 0.0, 0.0]])
    np.testing.assert_allclose(controller.act(np.ones((1, 2)), flat), [expected])


def test_whole_numbers_are_rounded_and_inside_their_bounds():
    whole = replace(ARM, continuous_actions=ContinuousActions(("a", "b"), (0.0, 1.0), (2.0, 5.0), whole=(True, True)))
    controller = LinearAgent(whole, clip_actions=False).controller
    flat = np.array([[1.4, 6.0, 0.0, 0.0, 0.0, 0.0]])
    assert controller.act(np.ones((1, 2)), flat).tolist() == [[1.0, 5.0]]


@pytest.mark.parametrize("activation", ["tanh", "leaky_relu"])
def test_a_perceptron_is_torch_s(activation):
    controller = MLPAgent(ARM, hidden=(5, 3), activation=activation, clip_actions=False).controller
    [flat] = drawn(controller, 1)
    sizes, layers, at = [(2, 5), (5, 3), (3, 2)], [], 0
    for k, m in sizes:
        layer = torch.nn.Linear(k, m).double()
        layer.weight.data = torch.tensor(flat[at : at + k * m].reshape(k, m).T)
        layer.bias.data = torch.tensor(flat[at + k * m : at + k * m + m])
        at += k * m + m
        layers += [layer, torch.nn.Tanh() if activation == "tanh" else torch.nn.LeakyReLU(0.2)]
    network = torch.nn.Sequential(*layers[:-1])
    seen = observations(controller, 9)
    with torch.no_grad():
        expected = network(torch.tensor(seen)).numpy()
    np.testing.assert_allclose(controller.act(seen, np.tile(flat, (9, 1))), expected)
    assert at == controller.space.dim


def test_tables():
    controller = TabularAgent(LAKE).controller
    assert controller.act(np.array([0, 3, 1]), np.tile([2.0, 1.0, 0.0, 2.0], (3, 1))).tolist() == [2, 2, 1]
    assert {(p.low, p.high, p.decimals) for p in controller.space.parameters} == {(0.0, 2.0, 0)}
    values = TabularAgent(LAKE, entries="values").controller
    table = np.zeros((4, 3))
    table[1, 2] = table[3, 1] = 0.5
    assert values.act(np.arange(4), np.tile(table.ravel(), (4, 1))).tolist() == [0, 2, 0, 1]
    some = TabularAgent(LAKE, actions=[1, 2]).controller
    assert {(p.low, p.high) for p in some.space.parameters} == {(1.0, 2.0)} and "1, 2" in some.layout


def test_directions_are_orthonormal_and_the_run_s_own():
    agents = [ProjectionAgent(ARM, Seeds(seed), rank=4) for seed in (0, 0, 1)]
    a, b, c = (agent.controller.basis for agent in agents)
    np.testing.assert_allclose(a.T @ a, np.eye(4), atol=1e-12)
    assert np.array_equal(a, b) and not np.allclose(a, c)
    controller = agents[0].controller
    z = drawn(controller, 3)
    np.testing.assert_allclose(controller.full(z), z @ a.T)
    # theta = z Q^T is found again by z = theta Q.
    np.testing.assert_allclose(controller.full(z) @ a, z)
    normal = ProjectionAgent(ARM, Seeds(0), rank=4, basis="normal").controller
    assert not np.allclose(normal.basis.T @ normal.basis, np.eye(4))


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(0, 5))
def test_rounded_vectors_are_inside_and_have_their_decimals(n, seed):
    for agent in (LinearAgent(POLE), LinearAgent(POLE, bound=0.5, decimals=3), TabularAgent(LAKE)):
        space = agent.controller.space
        wild = np.random.default_rng(seed).normal(0, 10, (n, space.dim))
        rounded = space.rounded(wild)
        space.check(rounded)
        digits = space.parameters[0].decimals
        assert np.array_equal(rounded, np.round(rounded, digits)) and np.array_equal(rounded, space.rounded(rounded))
        assert not np.signbit(rounded[rounded == 0]).any()
        inside = (wild >= space.low) & (wild <= space.high)
        assert np.abs(rounded - wild)[inside].max(initial=0) <= 0.5 * 10.0**-digits + 1e-9
        assert np.array_equal(space.rounded(wild, clip=False)[~inside], np.round(wild[~inside], digits) + 0.0)


class TestWords:
    def test_the_layout_names_every_number_of_a_linear_policy(self):
        layout = LinearAgent(POLE).controller.layout
        assert "params[2 * i + j] + params[6 + j]" in layout
        for line in (
            "- params[0] and params[1]: weights of observation[0] (position)",
            "- params[4] and params[5]: weights of observation[2] (angle)",
            "- params[6] and params[7]: biases",
            "output[0] is of action 0 (left), output[1] is of action 1 (right)",
        ):
            assert line in layout

    def test_bounds_of_numbers_are_told_as_they_are_used(self):
        assert "output[1] is elbow, from -2 to 2; each is put inside these bounds" in LinearAgent(ARM).controller.layout
        raw = LinearAgent(ARM, clip_actions=False).controller.layout
        assert "each is given to the game as it is" in raw

    def test_an_observation_without_names(self):
        bare = replace(ARM, observation={"vector": Channel((2,), "float32")})
        assert "- params[2] and params[3]: weights of observation[1]\n" in LinearAgent(bare).controller.layout

    def test_large_inputs_are_not_written_out(self):
        wide = replace(ARM, observation={"vector": Channel((100,), "float32")})
        layout = LinearAgent(wide).controller.layout
        assert len(layout) < 1000 and "observation[0], observation[1]" in layout

    def test_what_the_layout_says_is_what_is_done(self):
        """The formula of the layout of a perceptron, evaluated as it stands there."""
        controller = MLPAgent(ARM, hidden=(3,), clip_actions=False).controller
        first, second = (line for line in controller.layout.splitlines() if "is the sum" in line or "is tanh" in line)
        assert first.startswith("hidden1[j], for j from 0 to 2, is tanh of") and second.startswith("output[j]")
        [params] = drawn(controller, 1)
        observation = np.array([0.3, -0.7])

        def value(line, source):
            """With `params[a * i + j]`, or `params[c + a * i + j]`, and `params[b + j]`."""
            start, row, bias = re.search(
                r"params\[(?:(\d+) \+ )?(\d+) \* i \+ j\] \+ params\[(\d+) \+ j\]", line
            ).groups()
            weights = [
                [params[int(start or 0) + int(row) * i + j] for j in range(int(row))] for i in range(len(source))
            ]
            return source @ np.array(weights) + params[int(bias) : int(bias) + int(row)]

        hidden = np.tanh(value(first, observation))
        expected = value(second, hidden)
        np.testing.assert_allclose(controller.act(observation[None], params[None])[0], expected)


class TestAgent:
    def test_it_plays_what_it_was_given_and_saves_it(self):
        agent = LinearAgent(POLE, bias=False)
        seen = {"vector": torch.tensor([[[1.0, 0.0, 0.0]]])}
        assert agent.policy.act(seen).action.tolist() == [[0]]
        agent.set_parameters(np.array([0.0, 1.0, 0, 0, 0, 0]))
        assert agent.policy.act(seen).action.tolist() == [[1]]
        other = LinearAgent(POLE, bias=False)
        other.load_state_dict(agent.state_dict())
        assert other.policy.act(seen).action.tolist() == [[1]] and not other.learns

    def test_actions_of_several_numbers(self):
        agent = LinearAgent(ARM)
        agent.set_parameters(np.array([0.5, 1.0, 0, 0, 0, 0]))
        action = agent.policy.act({"vector": torch.ones(2, 1, 2)}).action
        assert action.shape == (2, 1, 2) and action.dtype == torch.float32 and action[1, 0].tolist() == [0.5, 1.0]

    def test_states(self):
        agent = TabularAgent(LAKE)
        agent.set_parameters(np.array([0.0, 1.0, 2.0, 0.0]))
        assert agent.policy.act({"state": torch.tensor([[2]])}).action.tolist() == [[2]]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TabularAgent(POLE), "observation of env=pole is not the number of a state.*use agent=linear"),
        (lambda: LinearAgent(replace(LAKE, observation={"state": LAKE.observation["state"]})), "env=lake shows state"),
        (lambda: TabularAgent(LAKE, actions=[0, 2]), r"agent.actions=\[0, 2\].*without gaps"),
        (lambda: TabularAgent(LAKE, actions=[2, 3]), r"agent.actions=\[2, 3\].*\(0 to 2\)"),
        (lambda: TabularAgent(LAKE, decimals=1), "agent.decimals=1: a table of actions holds whole numbers"),
        (lambda: TabularAgent(LAKE, entries="values", actions=[0]), r"agent.actions=\[0\]: a table of values"),
        (lambda: LinearAgent(POLE, bound=0.25), "agent.bound=0.25 has more digits than agent.decimals=1"),
        (lambda: LinearAgent(POLE, output="tanh"), "agent.output=tanh is for actions that are numbers"),
        (lambda: ProjectionAgent(POLE, Seeds(0), rank=9), "agent.rank=9: the linear policy has only 8 numbers"),
        (
            lambda: TabularAgent(replace(LAKE, continuous_actions=ARM.continuous_actions)),
            "an action of env=lake is 2 real numbers",
        ),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
