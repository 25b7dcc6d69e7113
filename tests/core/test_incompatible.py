"""Errors about incompatible parts, with their reason."""

import pickle

import pytest

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.spaces import Channel, ContinuousActions, EnvSpec

FLIGHT = EnvSpec(
    name="flight",
    n_envs=1,
    n_agents=1,
    observation={"vector": Channel((1,), "float32")},
    n_actions=0,
    action_names=(),
    horizon=1,
    continuous_actions=ContinuousActions(("lift",), (0.0,), (1.0,), False),
)


def test_error_is_picklable():
    error = Incompatible(Misfit.ABSENT, "no mechanism")
    unpickled = pickle.loads(pickle.dumps(error))  # noqa: S301  (its own)
    assert isinstance(unpickled, ConfigError) and (unpickled.reason, str(unpickled)) == (Misfit.ABSENT, "no mechanism")


def test_five_reasons_have_text():
    assert len(Misfit) == 5 and all(reason.told.endswith(".") for reason in Misfit)


def test_choice_agent_rejects_numeric_actions():
    with pytest.raises(Incompatible) as error:
        FLIGHT.need_discrete("a table")
    assert error.value.reason is Misfit.INTERFACE
