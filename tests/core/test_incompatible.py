"""Errors about incompatible parts, with their reason."""

import pickle

import pytest

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
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
    error = Incompatible(IncompatibilityReason.MISSING_PART, "no mechanism")
    unpickled = pickle.loads(pickle.dumps(error))  # noqa: S301  (its own)
    assert isinstance(unpickled, ConfigError) and (unpickled.reason, str(unpickled)) == (
        IncompatibilityReason.MISSING_PART,
        "no mechanism",
    )


def test_five_reasons_have_text():
    assert len(IncompatibilityReason) == 5 and all(reason.sentence.endswith(".") for reason in IncompatibilityReason)


def test_choice_agent_rejects_numeric_actions():
    with pytest.raises(Incompatible) as error:
        FLIGHT.require_discrete_actions("a table")
    assert error.value.reason is IncompatibilityReason.INTERFACE
