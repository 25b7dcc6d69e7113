"""Controllers with few parameters: parameter order, actions, descriptions and errors."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.agents.search_agent import TabularAgent, TabularController
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Controller, SearchableAgent
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, ContinuousActions
from policies import ARM, LAKE, POLE
from shipped import build_search_agent

BINS = [[-1, 1, 3], [0, 2, 2], [0.1, 0.2, 4]]
AGENTS = {
    "linear": lambda: build_search_agent("linear", POLE),
    "without bias": lambda: build_search_agent("linear", POLE, bias=False),
    "linear, numbers": lambda: build_search_agent("linear", ARM),
    "mlp": lambda: build_search_agent("mlp_policy", ARM, hidden=[5, 3]),
    "leaky mlp": lambda: build_search_agent("mlp_policy", POLE, hidden=[4], activation="leaky_relu", bias=False),
    "table": lambda: TabularAgent(LAKE),
    "table of bins": lambda: TabularAgent(POLE, bins=BINS),
    "projection": lambda: build_search_agent("projection", ARM, Seeds(0), rank=2, hidden=[4]),
}


def observations(controller, n, seed=0):
    rng = np.random.default_rng(seed)
    if controller.channel == "state":
        return rng.integers(0, 4, n)
    if isinstance(controller, TabularController):
        return rng.normal(size=(n, 3))
    inner = getattr(controller, "inner", controller)
    return rng.normal(size=(n, inner.layer_sizes[0][0]))


def sample_parameters(controller, n, seed=0):
    space = controller.space
    return space.round_values(np.random.default_rng(seed).uniform(space.low, space.high, (n, space.dim)))


@pytest.mark.parametrize("name", AGENTS)
def test_controllers_satisfy_protocols(name):
    agent = AGENTS[name]()
    controller = agent.controller
    assert isinstance(agent, SearchableAgent) and isinstance(controller, Controller)
    assert [p.name for p in controller.space.parameters] == [f"params[{i}]" for i in range(controller.space.dim)]
    assert controller.layout and all(p.description for p in controller.space.parameters)
    assert agent.describe()["parameters"] == controller.space.dim


@pytest.mark.parametrize("name", AGENTS)
def test_batch_keeps_action(name):
    """Compare bit for bit, because evaluations distribute games over processes."""
    controller = AGENTS[name]().controller
    inputs, parameters = observations(controller, 50), sample_parameters(controller, 50)
    batch_actions = controller.act(inputs, parameters)
    copied = pickle.loads(pickle.dumps(controller))  # noqa: S301
    for i in range(50):
        np.testing.assert_array_equal(copied.act(inputs[i : i + 1], parameters[i : i + 1])[0], batch_actions[i])
    np.testing.assert_array_equal(controller.act(inputs[7:30], parameters[7:30]), batch_actions[7:30])


def test_linear_weights_are_row_major_with_biases_last():
    """Check the published order: number i is the weight of input i div m on output i mod m."""
    controller = build_search_agent("linear", ARM, clip_actions=False).controller
    weights, biases = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.5, -0.5])
    flat = np.concatenate([weights.ravel(), biases])
    state = np.array([[0.1, -0.2]])
    # One of the sums is 0 but for rounding, which is not the same on all processors.
    np.testing.assert_allclose(controller.act(state, flat[None]), state @ weights + biases, atol=1e-12)
    assert controller.space.parameters[2].description == "weight of speed on shoulder"
    assert controller.space.parameters[5].description == "bias of elbow"


def test_choice_is_first_maximum():
    controller = build_search_agent("linear", POLE, bias=False).controller
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
def test_outputs_map_to_actions(settings, expected):
    controller = build_search_agent("linear", ARM, **settings).controller
    flat = np.array([[4.0, 0.0, 0.0, -8.0, 0.0, 0.0]])
    np.testing.assert_allclose(controller.act(np.ones((1, 2)), flat), [expected])


def test_integers_are_clipped():
    integer_space = replace(
        ARM, continuous_actions=ContinuousActions(("a", "b"), (0.0, 1.0), (2.0, 5.0), is_integer=(True, True))
    )
    controller = build_search_agent("linear", integer_space, clip_actions=False).controller
    flat = np.array([[1.4, 6.0, 0.0, 0.0, 0.0, 0.0]])
    assert controller.act(np.ones((1, 2)), flat).tolist() == [[1.0, 5.0]]


@pytest.mark.parametrize("activation", ["tanh", "leaky_relu"])
def test_perceptron_matches_torch(activation):
    controller = build_search_agent(
        "mlp_policy", ARM, hidden=[5, 3], activation=activation, clip_actions=False
    ).controller
    [flat] = sample_parameters(controller, 1)
    sizes, layers, at = [(2, 5), (5, 3), (3, 2)], [], 0
    for k, m in sizes:
        layer = torch.nn.Linear(k, m).double()
        layer.weight.data = torch.tensor(flat[at : at + k * m].reshape(k, m).T)
        layer.bias.data = torch.tensor(flat[at + k * m : at + k * m + m])
        at += k * m + m
        layers += [layer, torch.nn.Tanh() if activation == "tanh" else torch.nn.LeakyReLU(0.2)]
    network = torch.nn.Sequential(*layers[:-1])
    inputs = observations(controller, 9)
    with torch.no_grad():
        expected = network(torch.tensor(inputs)).numpy()
    np.testing.assert_allclose(controller.act(inputs, np.tile(flat, (9, 1))), expected)
    assert at == controller.space.dim


def test_tables():
    controller = TabularAgent(LAKE).controller
    assert controller.act(np.array([0, 3, 1]), np.tile([2.0, 1.0, 0.0, 2.0], (3, 1))).tolist() == [2, 2, 1]
    assert {(p.low, p.high, p.decimals) for p in controller.space.parameters} == {(0.0, 2.0, 0)}


def test_directions_are_orthonormal_and_seed_dependent():
    agents = [build_search_agent("projection", ARM, Seeds(seed), rank=4) for seed in (0, 0, 1)]
    first_basis, second_basis, third_basis = (agent.controller.basis for agent in agents)
    np.testing.assert_allclose(first_basis.T @ first_basis, np.eye(4), atol=1e-12)
    assert np.array_equal(first_basis, second_basis) and not np.allclose(first_basis, third_basis)
    controller = agents[0].controller
    z = sample_parameters(controller, 3)
    np.testing.assert_allclose(controller.compute_weights(z), z @ first_basis.T)
    # theta = z Q^T is found again by z = theta Q.
    np.testing.assert_allclose(controller.compute_weights(z) @ first_basis, z)


@settings(max_examples=30)
@given(st.integers(1, 30), st.integers(0, 5))
def test_rounded_vectors_stay_in_bounds(n, seed):
    for agent in (
        build_search_agent("linear", POLE),
        build_search_agent("linear", POLE, bound=0.5, decimals=3),
        TabularAgent(LAKE),
    ):
        space = agent.controller.space
        wild = np.random.default_rng(seed).normal(0, 10, (n, space.dim))
        rounding = space.round_values(wild)
        space.check(rounding)
        digits = space.parameters[0].decimals
        assert np.array_equal(rounding, np.round(rounding, digits)) and np.array_equal(
            rounding, space.round_values(rounding)
        )
        assert not np.signbit(rounding[rounding == 0]).any()
        in_bounds = (wild >= space.low) & (wild <= space.high)
        assert np.abs(rounding - wild)[in_bounds].max(initial=0) <= 0.5 * 10.0**-digits + 1e-9
        assert np.array_equal(
            space.round_values(wild, clip=False)[~in_bounds], np.round(wild[~in_bounds], digits) + 0.0
        )


class TestWords:
    def test_layout_lists_linear_parameters(self):
        layout = build_search_agent("linear", POLE).controller.layout
        assert "params[2 * i + j] + params[6 + j]" in layout
        for line in (
            "- params[0] and params[1]: weights of observation[0] (position)",
            "- params[4] and params[5]: weights of observation[2] (angle)",
            "- params[6] and params[7]: biases",
            "output[0] is of action 0 (left), output[1] is of action 1 (right)",
        ):
            assert line in layout

    def test_layout_states_effective_bounds(self):
        assert (
            "output[1] is elbow, from -2 to 2; each is put inside these bounds"
            in build_search_agent("linear", ARM).controller.layout
        )
        raw = build_search_agent("linear", ARM, clip_actions=False).controller.layout
        assert "each is given to the game as it is" in raw

    def test_observation_names_are_optional(self):
        bare = replace(ARM, observation={"vector": Channel((2,), "float32")})
        assert (
            "- params[2] and params[3]: weights of observation[1]\n"
            in build_search_agent("linear", bare).controller.layout
        )

    def test_large_inputs_are_abbreviated(self):
        wide = replace(ARM, observation={"vector": Channel((100,), "float32")})
        layout = build_search_agent("linear", wide).controller.layout
        assert len(layout) < 1000 and "observation[0], observation[1]" in layout

    def test_layout_matches_computation(self):
        """Evaluate the formula in the layout of a perceptron."""
        controller = build_search_agent("mlp_policy", ARM, hidden=[3], clip_actions=False).controller
        first, second = (line for line in controller.layout.splitlines() if "is the sum" in line or "is tanh" in line)
        assert first.startswith("hidden1[j], for j from 0 to 2, is tanh of") and second.startswith("output[j]")
        [params] = sample_parameters(controller, 1)
        observation = np.array([0.3, -0.7])

        def value(line, source):
            """Evaluate `params[a * i + j]`, or `params[c + a * i + j]`, and `params[b + j]`."""
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
    def test_controller_saves_parameters(self):
        agent = build_search_agent("linear", POLE, bias=False)
        inputs = {"vector": torch.tensor([[[1.0, 0.0, 0.0]]])}
        assert agent.policy.act(inputs).action.tolist() == [[0]]
        agent.set_parameters(np.array([0.0, 1.0, 0, 0, 0, 0]))
        assert agent.policy.act(inputs).action.tolist() == [[1]]
        unbiased_agent = build_search_agent("linear", POLE, bias=False)
        unbiased_agent.load_state_dict(agent.state_dict())
        assert unbiased_agent.policy.act(inputs).action.tolist() == [[1]] and not unbiased_agent.learns

    def test_plays_vector_actions(self):
        agent = build_search_agent("linear", ARM)
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
        (lambda: TabularAgent(POLE), "env=pole.*agent=linear"),
        (
            lambda: build_search_agent("linear", replace(LAKE, observation={"state": LAKE.observation["state"]})),
            "env=lake",
        ),
        (lambda: build_search_agent("linear", POLE, bound=0.25), "agent.bound=0.25.*agent.decimals=1"),
        (lambda: build_search_agent("linear", POLE, output="tanh"), "agent.output=tanh.*env=pole"),
        (lambda: build_search_agent("projection", POLE, Seeds(0), rank=9), "agent.rank=9.*<=8"),
        (
            lambda: TabularAgent(replace(LAKE, continuous_actions=ARM.continuous_actions)),
            "env=lake.*2",
        ),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
