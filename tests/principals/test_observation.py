"""What principals with networks see of a game."""

import dataclasses

import numpy as np
import pytest

from llmrl.core.errors import ConfigError
from llmrl.principals.observation import ObserveSettings, PrincipalObservation
from societies import CLEANUP, ESCAPE_ROOM, HARVEST, outcome, toy


def told(spec, context=None, **trajectories):
    plain = outcome(spec, spec.mechanism.low, context)
    return dataclasses.replace(plain, trajectories={name: np.asarray(x, float) for name, x in trajectories.items()})


def test_every_step_of_a_metric_divided_by_a_scale():
    """Harvest as published: live apples at each of 1000 steps, divided by 64."""
    observed = PrincipalObservation(HARVEST, ObserveSettings(["apples_live"], None, 1, 64.0, True))
    assert observed.size == 1000 and observed.vector(None).tolist() == [1.0] * 1000
    apples = np.linspace(64, 0, 1000)
    observed.tell([told(HARVEST, apples_live=apples)])
    np.testing.assert_allclose(observed.vector(None), apples / 64, rtol=1e-6)


def test_every_second_step_of_two_metrics():
    """Clean Up as published: two courses, every second step, as they are."""
    observed = PrincipalObservation(CLEANUP, ObserveSettings(["apples_live", "cells_cleaned"], None, 2, 1.0, True))
    assert observed.size == 1000
    live, cleaned = np.arange(1000.0), np.arange(1000.0) ** 0.5
    observed.tell([told(CLEANUP, apples_live=live, cells_cleaned=cleaned)])
    np.testing.assert_allclose(observed.vector(None), np.concatenate([live[::2], cleaned[::2]]), rtol=1e-6)


def test_context_and_means():
    """The escape room as published: the context, and means of where agents were and whether the door was open."""
    places = [f"agents_at_{place}" for place in ("lever_0", "lever_1", "lever_2", "door", "start")]
    observed = PrincipalObservation(ESCAPE_ROOM, ObserveSettings([*places, "door_open"], 1, 1, 1.0, True))
    assert observed.vector(2).tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1]
    courses = {name: np.full(5, float(i)) for i, name in enumerate(places)}
    observed.tell([told(ESCAPE_ROOM, 2, **courses, door_open=[0, 0, 1, 1, 1])])
    np.testing.assert_allclose(observed.vector(0), [1, 0, 0, 0, 1, 2, 3, 4, 0.6], rtol=1e-6)


def test_windows_are_averaged_and_each_metric_has_its_scale():
    society = toy()
    observed = PrincipalObservation(society, ObserveSettings(None, 4, 1, None, True))
    ramp = np.arange(20.0)
    observed.tell([told(society, level=100 * ramp, moves=-ramp)])
    windows = ramp.reshape(4, 5).mean(1)
    np.testing.assert_allclose(observed.vector(None), np.concatenate([windows, -windows]) / windows[-1], rtol=1e-6)
    observed.tell([told(society, level=ramp, moves=np.zeros(20))])  # scales remember the largest
    np.testing.assert_allclose(observed.vector(None)[:4], windows / windows[-1] / 100, rtol=1e-6)
    assert (
        PrincipalObservation(society, ObserveSettings(None, 50, 1, None, True)).size == 40
    )  # no more windows than steps


def test_several_proposals_are_averaged():
    society = toy()
    observed = PrincipalObservation(society, ObserveSettings(["level"], 1, 1, 1.0, True))
    observed.tell([told(society, level=np.full(20, x)) for x in (1.0, 5.0)])
    assert observed.vector(None).tolist() == [3.0]


def test_without_history_only_the_context_changes():
    society = toy(contexts=("calm", "storm"))
    observed = PrincipalObservation(society, ObserveSettings(["level"], 2, 1, 1.0, False))
    observed.tell([told(society, 0, level=np.arange(20.0))])
    assert observed.vector(1).tolist() == [0, 1, 1, 1]


def test_refusals():
    with pytest.raises(ConfigError, match=r"no metric 'apples' of env=harvest, but apples_live, apples_eaten"):
        PrincipalObservation(HARVEST, ObserveSettings(["apples"], None, 1, None, True))
    with pytest.raises(ConfigError, match=r"set env.horizon"):
        PrincipalObservation(dataclasses.replace(HARVEST, horizon=None), ObserveSettings(None, None, 1, None, True))
