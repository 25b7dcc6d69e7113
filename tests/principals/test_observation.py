"""Observations of principals with networks."""

import dataclasses

import numpy as np
import pytest

from llmrl.core.errors import ConfigError
from llmrl.principals.network_principals import ObservationEncoder, ObserveSettings
from societies import CLEANUP, ESCAPE_ROOM, HARVEST, make_outcome, make_toy_spec


def observe_outcome(spec, context=None, **trajectories):
    plain = make_outcome(spec, spec.mechanism.low, context)
    return dataclasses.replace(plain, trajectories={name: np.asarray(x, float) for name, x in trajectories.items()})


def test_metric_steps_with_scale():
    """The published observation of Harvest: live apples at each of 1000 steps, divided by 64."""
    observation = ObservationEncoder(HARVEST, ObserveSettings(["apples_live"], None, 1, 64.0, True))
    assert observation.size == 1000 and observation.encode(None).tolist() == [1.0] * 1000
    apples = np.linspace(64, 0, 1000)
    observation.tell([observe_outcome(HARVEST, apples_live=apples)])
    np.testing.assert_allclose(observation.encode(None), apples / 64, rtol=1e-6)


def test_strided_steps_for_two_metrics():
    """The published observation of Clean Up: two metrics at every second step without scaling."""
    observation = ObservationEncoder(CLEANUP, ObserveSettings(["apples_live", "cells_cleaned"], None, 2, 1.0, True))
    assert observation.size == 1000
    live, cleaned = np.arange(1000.0), np.arange(1000.0) ** 0.5
    observation.tell([observe_outcome(CLEANUP, apples_live=live, cells_cleaned=cleaned)])
    np.testing.assert_allclose(observation.encode(None), np.concatenate([live[::2], cleaned[::2]]), rtol=1e-6)


def test_context_with_means():
    """The published observation of the escape room: the context, mean positions of agents and the open door."""
    places = [f"agents_at_{place}" for place in ("lever_0", "lever_1", "lever_2", "door", "start")]
    observation = ObservationEncoder(ESCAPE_ROOM, ObserveSettings([*places, "door_open"], 1, 1, 1.0, True))
    assert observation.encode(2).tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1]
    courses = {name: np.full(5, float(i)) for i, name in enumerate(places)}
    observation.tell([observe_outcome(ESCAPE_ROOM, 2, **courses, door_open=[0, 0, 1, 1, 1])])
    np.testing.assert_allclose(observation.encode(0), [1, 0, 0, 0, 1, 2, 3, 4, 0.6], rtol=1e-6)


def test_windows_average_scaled_metrics():
    society = make_toy_spec()
    observation = ObservationEncoder(society, ObserveSettings(None, 4, 1, None, True))
    ramp = np.arange(20.0)
    observation.tell([observe_outcome(society, level=100 * ramp, moves=-ramp)])
    windows = ramp.reshape(4, 5).mean(1)
    np.testing.assert_allclose(observation.encode(None), np.concatenate([windows, -windows]) / windows[-1], rtol=1e-6)
    observation.tell([observe_outcome(society, level=ramp, moves=np.zeros(20))])  # scales remember the largest
    np.testing.assert_allclose(observation.encode(None)[:4], windows / windows[-1] / 100, rtol=1e-6)
    assert (
        ObservationEncoder(society, ObserveSettings(None, 50, 1, None, True)).size == 40
    )  # no more windows than steps


def test_proposals_are_averaged():
    society = make_toy_spec()
    observation = ObservationEncoder(society, ObserveSettings(["level"], 1, 1, 1.0, True))
    observation.tell([observe_outcome(society, level=np.full(20, x)) for x in (1.0, 5.0)])
    assert observation.encode(None).tolist() == [3.0]


def test_empty_history_contains_only_context():
    society = make_toy_spec(contexts=("calm", "storm"))
    observation = ObservationEncoder(society, ObserveSettings(["level"], 2, 1, 1.0, False))
    observation.tell([observe_outcome(society, 0, level=np.arange(20.0))])
    assert observation.encode(1).tolist() == [0, 1, 1, 1]


def test_refusals():
    with pytest.raises(ConfigError, match=r"env=harvest.*'apples'.*apples_live, apples_eaten"):
        ObservationEncoder(HARVEST, ObserveSettings(["apples"], None, 1, None, True))
    with pytest.raises(ConfigError, match=r"env\.horizon.*env=harvest"):
        ObservationEncoder(dataclasses.replace(HARVEST, horizon=None), ObserveSettings(None, None, 1, None, True))
