"""Two parts that do not fit by their nature: an error that says which reason it is."""

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


def test_it_says_why_and_survives_a_process():
    error = Incompatible(Misfit.ABSENT, "no mechanism")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (its own)
    assert isinstance(again, ConfigError) and (again.reason, str(again)) == (Misfit.ABSENT, "no mechanism")


def test_there_are_five_reasons_each_in_words():
    assert len(Misfit) == 5 and all(reason.told.endswith(".") for reason in Misfit)


def test_who_chooses_one_action_of_several_is_incompatible_with_numbers():
    with pytest.raises(Incompatible) as caught:
        FLIGHT.need_discrete("a table")
    assert caught.value.reason is Misfit.INTERFACE
