"""Specs of environments for policy search, and principals that search the parameters of a policy."""

import numpy as np

from llmrl.agents.search_agent import TabularAgent
from llmrl.core.records import Outcome
from llmrl.core.spaces import Channel, ContinuousActions, EnvDescription, EnvSpec
from llmrl.statistics.estimators import standard_error_of_mean
from models import make_scripted_client
from shipped import build_llm_principal, build_search_agent

POLE = EnvSpec(
    name="pole",
    n_envs=1,
    n_agents=1,
    observation={"vector": Channel((3,), "float32")},
    n_actions=2,
    action_names=("left", "right"),
    horizon=200,
    text=EnvDescription(
        "Keep the pole upright.",
        (("position", "of the cart (in m, from -2.4 to 2.4)"), ("speed", "of the cart"), ("angle", "of the pole")),
        (("left", "push to the left"), ("right", "push to the right")),
    ),
)
ARM = EnvSpec(
    name="arm",
    n_envs=2,
    n_agents=1,
    observation={"vector": Channel((2,), "float32", parts=({"angle": slice(0, 1), "speed": slice(1, 2)},))},
    n_actions=0,
    action_names=(),
    horizon=None,
    continuous_actions=ContinuousActions(("shoulder", "elbow"), (-1.0, -2.0), (1.0, 2.0)),
)
LAKE = EnvSpec(
    name="lake",
    n_envs=1,
    n_agents=1,
    observation={"vector": Channel((4,), "float32"), "state": Channel((), "int64", 0, 3)},
    n_actions=3,
    action_names=("0", "1", "2"),
    horizon=100,
)


def make_searcher(spec=POLE, agent=None, llm=None, **settings):
    """Return a principal that searches the policy of `agent`, by default with the scripted model."""
    agent = agent or (TabularAgent(spec) if "state" in spec.observation else build_search_agent("linear", spec))
    return build_llm_principal(spec, llm or make_scripted_client(), controller=agent.controller, **settings)


def make_policy_outcome(vector, value, n=20, **summaries):
    """Return the outcome of a vector with `n` episode values evenly spaced around `value`."""
    values = value + np.arange(n) - (n - 1) / 2
    return Outcome(
        np.array(vector, dtype=float), float(value), values, standard_error_of_mean(values), summaries=summaries
    )
