"""Environment specs with mechanisms, and outcomes of a toy society with a known optimum."""

import numpy as np

from environments import make_env
from llmrl.core.records import Outcome
from llmrl.core.spaces import Channel, EnvSpec, Parameter, ParameterSpace
from llmrl.envs.mechanisms import BracketedTax, Incentives
from llmrl.envs.substrate.society_env import SubstrateSettings, build_spec
from llmrl.statistics.estimators import standard_error_of_mean


def make_spec(
    mechanism, name="toy", contexts=(), metrics=None, actions=("stay", "go"), n_agents=3, horizon=20, **kwargs
):
    return EnvSpec(
        name=name,
        n_envs=1,
        n_agents=n_agents,
        observation={"vector": Channel((2,), "float32")},
        n_actions=len(actions),
        action_names=tuple(actions),
        horizon=horizon,
        mechanism=mechanism,
        contexts=tuple(contexts),
        metrics=metrics or {},
        **kwargs,
    )


def make_toy_spec(d=2, contexts=(), low=-1.0, high=3.0):
    """Return the spec of a game with `d` mechanism parameters in [low, high]."""
    numbers = tuple(Parameter(f"x{i}", low, high, "units", f"knob number {i}") for i in range(d))
    return make_spec(ParameterSpace("knobs", numbers), contexts=contexts, metrics={"level": "last", "moves": "sum"})


def make_outcome(spec, vector, context=None, value=None, n=1):
    """Return the outcome of a vector in a society with quadratic payoff.

    The payoff is 10 - 10 |u - u_best|^2 for the vector u scaled to the unit cube; u_best is 0.7 (0.3 in context 1).
    """
    low, high = spec.mechanism.low, spec.mechanism.high
    best = low + (0.3 if context == 1 else 0.7) * (high - low)
    payoff = 10.0 - float((((vector - best) / (high - low)) ** 2).sum()) * 10 if value is None else value
    return Outcome(
        vector=np.asarray(vector),
        value=payoff,
        values=payoff + np.arange(n) - (n - 1) / 2,
        standard_error=standard_error_of_mean(payoff + np.arange(n)),
        context=context,
        returns=np.full(spec.n_agents, payoff),
        trajectories={name: np.arange(20.0) for name in spec.principal_metrics},
        summaries=dict.fromkeys(spec.principal_metrics, 19.0),
        gradient=-20 * (vector - best) / (high - low) ** 2,
    )


def make_substrate_spec(name, rules, mechanism):
    game = SubstrateSettings(name, 1, rules=rules, mechanism=mechanism, show_mechanism=False)
    return build_spec(game, "meltingpot")


CLEANUP = make_substrate_spec("cleanup", "upstream", Incentives(eat_reward=0.1))
CLEANUP_LEGISLATIVE = make_substrate_spec(
    "cleanup", "legislative", Incentives(0.1, clean_count="exactly_one", reward_removed=True)
)
HARVEST = make_substrate_spec("harvest", "upstream", BracketedTax())
HARVEST_LEGISLATIVE = make_substrate_spec("harvest", "legislative", BracketedTax())
ESCAPE_ROOM = make_env("escape_room", n_envs=1).spec
TAX_ECONOMY = make_env("tax_economy", n_envs=1).spec
GENERIC = make_toy_spec()
