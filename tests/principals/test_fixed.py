"""`principal=listed`: proposals of given vectors in order."""

import json

import numpy as np
import pytest

from experiments import find_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.principals.nonadaptive import FixedPrincipal, ListedPrincipal
from societies import make_outcome, make_toy_spec

VECTORS = [[0.0, 1.0], [1.0, 0.0], [3.0, 3.0]]


def test_list_order_repeats_cyclically():
    space = make_toy_spec().mechanism
    principal = ListedPrincipal(space, VECTORS)
    assert principal.ask(n=2).tolist() == VECTORS[:2]
    restored = ListedPrincipal(space, VECTORS)
    restored.load_state_dict(principal.state_dict())
    assert restored.ask(n=3).tolist() == [VECTORS[2], *VECTORS[:2]]
    assert restored.tell([make_outcome(make_toy_spec(), np.array(VECTORS[0]))]) == {}


def test_grid_enumerates_last_number_first():
    principal = ListedPrincipal(make_toy_spec().mechanism, grid=[[0.0, 1.0], [2.0, 3.0, 1.0]])
    assert principal.ask(n=6).tolist() == [[0, 2], [0, 3], [0, 1], [1, 2], [1, 3], [1, 1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "vectors.*grid"),
        ({"vectors": VECTORS, "grid": [[0.0], [1.0]]}, "vectors.*grid"),
        ({"grid": [[0.0, 1.0]]}, r"principal\.grid .*2 numbers .* 1 lists"),
        ({"grid": [[0.0], [9.0]]}, "outside"),
    ],
)
def test_list_sources_are_exclusive(options, message):
    with pytest.raises(ConfigError, match=message):
        ListedPrincipal(make_toy_spec().mechanism, **options)


@pytest.mark.parametrize("vectors", [[[9.0, 0.0]], [[0.0]], [[0.0, 1.0], [0.0]]])
def test_invalid_vectors(vectors):
    with pytest.raises(ConfigError):
        ListedPrincipal(make_toy_spec().mechanism, vectors)


@pytest.mark.slow
def test_list_is_single_batch(tmp_path):
    run(
        "env=escape_room", "principal=listed", "principal.vectors=[[0,0,0,0,0],[5,0,0,0,0],[0,0,0,0,5]]",
        "design.candidates=3", "env.n_envs=12", "design.steps=2", "design.adapt_rounds=2", f"output_root={tmp_path}",
    )  # fmt: skip
    history = json.loads((find_run_folder(tmp_path) / "summary.json").read_text())["history"]
    assert [list(row["mechanism"].values()) for row in history] == 2 * [[0] * 5, [5, 0, 0, 0, 0], [0, 0, 0, 0, 5]]


def test_excess_decimals_name_their_option():
    parameters = tuple(Parameter(f"x{i}", 0.0, 2.0, "", "", decimals=0) for i in range(2))
    with pytest.raises(ConfigError, match=r"^principal\.grid: "):
        ListedPrincipal(ParameterSpace("digits", parameters), grid=[[0.5], [1.0]])
    with pytest.raises(ConfigError, match=r"^principal\.contexts: "):
        FixedPrincipal(ParameterSpace("digits", parameters, ("a",)), contexts=[[0.5, 1.0]])
