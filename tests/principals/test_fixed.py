"""`principal=listed`: the vectors that were given, in their order."""

import json

import numpy as np
import pytest

from experiments import only_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.principals.fixed import ListedPrincipal
from societies import outcome, toy

VECTORS = [[0.0, 1.0], [1.0, 0.0], [3.0, 3.0]]


def test_in_their_order_and_from_the_beginning_again():
    space = toy().mechanism
    principal = ListedPrincipal(space, VECTORS)
    assert principal.ask(n=2).tolist() == VECTORS[:2]
    resumed = ListedPrincipal(space, VECTORS)
    resumed.load_state_dict(principal.state_dict())
    assert resumed.ask(n=3).tolist() == [VECTORS[2], *VECTORS[:2]]
    assert resumed.tell([outcome(toy(), np.array(VECTORS[0]))]) == {}


def test_a_grid_is_all_combinations_the_last_number_first():
    principal = ListedPrincipal(toy().mechanism, grid=[[0.0, 1.0], [2.0, 3.0, 1.0]])
    assert principal.ask(n=6).tolist() == [[0, 2], [0, 3], [0, 1], [1, 2], [1, 3], [1, 1]]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "one of them"),
        ({"vectors": VECTORS, "grid": [[0.0], [1.0]]}, "one of them"),
        ({"grid": [[0.0, 1.0]]}, "each of the 2 numbers"),
        ({"grid": [[0.0], [9.0]]}, "outside"),
    ],
)
def test_a_list_is_given_in_one_way(given, said):
    with pytest.raises(ConfigError, match=said):
        ListedPrincipal(toy().mechanism, **given)


@pytest.mark.parametrize("vectors", [[[9.0, 0.0]], [[0.0]], [[0.0, 1.0], [0.0]]])
def test_what_is_no_vector_is_refused(vectors):
    with pytest.raises(ConfigError):
        ListedPrincipal(toy().mechanism, vectors)


@pytest.mark.slow
def test_a_list_is_one_batch(tmp_path):
    run(
        "env=escape_room", "principal=listed", "principal.vectors=[[0,0,0,0,0],[5,0,0,0,0],[0,0,0,0,5]]",
        "design.candidates=3", "env.n_envs=12", "design.steps=2", "design.adapt_rounds=2", f"output_root={tmp_path}",
    )  # fmt: skip
    history = json.loads((only_run_folder(tmp_path) / "summary.json").read_text())["history"]
    assert [list(row["mechanism"].values()) for row in history] == 2 * [[0] * 5, [5, 0, 0, 0, 0], [0, 0, 0, 0, 5]]
