"""Checkpoints: round trips, detection of damage and atomic writes."""

from __future__ import annotations

import hashlib
import io
import logging
import multiprocessing
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from llmrl.core.errors import CheckpointError
from llmrl.run.checkpoints import _FORMAT_VERSION, MAGIC, CheckpointStore, DamagedCheckpointError

ARRAYS = hnp.arrays(
    st.sampled_from(
        ["<f8", "<f4", "<f2", "<i8", "<i4", "<u8", "<u4", "<u2", "|u1", "|b1", "<c8", ">f8", "<U3", "<M8[s]"]
    ),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | st.text(max_size=5) | ARRAYS
STATES = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
            | st.tuples(inner, inner)
        ),
    ),
    max_size=4,
)


def are_equal(a: Any, b: Any) -> bool:
    """Return whether values and types are equal; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(are_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(are_equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (a != a and b != b)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=STATES)
def test_plain_values_round_trip(tmp_path: Path, state: dict[str, Any]) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save(3, state)
    iteration, loaded = store.load(path)
    assert iteration == 3
    assert are_equal(loaded, state)
    content = path.read_bytes()
    assert store.save(3, loaded).read_bytes() == content  # what was resumed saves the same bytes again


def test_generators_optimizers_slices(tmp_path: Path) -> None:
    numpy_generator, torch_generator = np.random.default_rng(1), torch.Generator().manual_seed(1)
    numpy_generator.normal(size=3)
    layer = torch.nn.Linear(4, 2)
    adam = torch.optim.Adam(layer.parameters(), betas=(0.8, 0.9))
    layer(torch.ones(4)).sum().backward()
    adam.step()
    state = {
        "numpy": numpy_generator.bit_generator.state,
        "mt": np.random.Generator(np.random.MT19937(1)).bit_generator.state,
        "torch": torch_generator.get_state(),
        "layer": layer.state_dict(),
        "adam": adam.state_dict(),
        "slice": torch.zeros(1_000_000)[:2],
        "float": np.float64(0.1),
        "integer": np.int64(7),
    }
    store = CheckpointStore(tmp_path)
    path = store.save(0, state)
    _, loaded = store.load(path)
    assert path.stat().st_size < 100_000  # the slice came without the rest of its storage
    assert type(loaded["float"]) is np.float64
    assert type(loaded["integer"]) is np.int64
    assert are_equal(loaded["adam"], state["adam"])
    fresh = torch.nn.Linear(4, 2)
    fresh.load_state_dict(loaded["layer"])
    torch.optim.Adam(fresh.parameters()).load_state_dict(loaded["adam"])
    assert torch.equal(fresh.weight, layer.weight)
    second_generator = np.random.default_rng(2)
    second_generator.bit_generator.state = loaded["numpy"]
    assert second_generator.normal() == numpy_generator.normal()
    mt = np.random.Generator(np.random.MT19937(2))
    mt.bit_generator.state = loaded["mt"]
    assert mt.normal() == np.random.Generator(np.random.MT19937(1)).normal()


@pytest.mark.parametrize(
    ("state", "location"),
    [
        ({"a": {"b": [1, object()]}}, r"state\.a\.b.*1"),
        ({"a": np.array([None])}, r"state\.a"),
        ({"a": {1.5: 0}}, r"state\.a.*1\.5"),
        ({"a": {"__numpy__": 0}}, "reserved key"),
        ({"a": 2**3000}, "bits"),
        ({"a": {1, 2}}, r"state\.a"),
    ],
)
def test_unsupported_values_raise(tmp_path: Path, state: dict[str, Any], location: str) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"x": 1})
    with pytest.raises(TypeError, match=location):
        store.save(2, state)
    assert store.load_newest() == (1, {"x": 1})


def test_newest_checkpoints_are_retained(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    assert store.load_newest() is None
    for i in (1, 2, 10, 10):
        store.save(i, {"i": i})
    assert [store.load(path)[0] for path in store.list_paths()] == [2, 10]


def damage(path: Path, damage_type: str) -> None:
    data = bytearray(path.read_bytes())
    if damage_type == "flip":
        data[len(data) // 3] ^= 1
    elif damage_type == "flip digest":
        data[-1] ^= 1
    elif damage_type == "truncate":
        del data[len(data) // 2 :]
    else:
        data.clear()
    path.write_bytes(data)


@pytest.mark.parametrize("damage_type", ["flip", "flip digest", "truncate", "empty"])
def test_corrupt_newest_falls_to_predecessor(
    tmp_path: Path, damage_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(tmp_path)
    for i in (1, 2):
        store.save(i, {"i": i})
    damage(store.list_paths()[-1], damage_type)
    with caplog.at_level(logging.WARNING):
        assert store.load_newest() == (1, {"i": 1})
    assert "checkpoint_000000002.pt" in caplog.text
    # The run goes on from 1 more slowly than before; the damaged file must not push out the good ones.
    corrupt_name = store.list_paths()[-1].name
    store.save(1, {"i": 1})
    assert corrupt_name not in [path.name for path in store.list_paths()]
    damage(store.list_paths()[-1], damage_type)
    with pytest.raises(CheckpointError, match="rerun=true"):
        store.load_newest()


@given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_flipped_bit_is_detected(tmp_path: Path, position: int, bit: int) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save(1, {"weights": torch.arange(4.0), "n": 3})
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(DamagedCheckpointError):
        store.load(path)


def test_checkpoint_with_different_config_raises(tmp_path: Path) -> None:
    CheckpointStore(tmp_path, config_hash="aaaa1111").save(1, {})
    with pytest.raises(CheckpointError, match=r"aaaa1111.*bbbb2222"):
        CheckpointStore(tmp_path, config_hash="bbbb2222").load_newest()
    assert CheckpointStore(tmp_path).load_newest() == (1, {})  # a reader that does not mind


class PickledCall:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_checkpoint_with_different_format_raises(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT_VERSION - 1, "iteration": 1, "config_hash": "", "state": {}}, buffer)
    body = buffer.getvalue()
    path = tmp_path / "checkpoint_000000001.pt"
    path.write_bytes(body + MAGIC + hashlib.sha256(body).digest())
    with pytest.raises(CheckpointError, match=f"format {_FORMAT_VERSION - 1};.* {_FORMAT_VERSION}"):
        CheckpointStore(tmp_path).load(path)


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    """A valid file with a correct digest contains a pickled object."""
    buffer = io.BytesIO()
    torch.save(
        {"format": _FORMAT_VERSION, "iteration": 1, "config_hash": "", "state": PickledCall(tmp_path / "evil")}, buffer
    )
    body = buffer.getvalue()
    path = tmp_path / "checkpoint_000000001.pt"
    path.write_bytes(body + MAGIC + hashlib.sha256(body).digest())
    with pytest.raises(CheckpointError, match="checkpoint"):
        CheckpointStore(tmp_path).load_newest()
    assert not (tmp_path / "evil").exists()


def test_missing_file_or_unwritable_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot read"):
        CheckpointStore(tmp_path).load(tmp_path / "checkpoint_000000009.pt")
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot write"):
        CheckpointStore(tmp_path / "file" / "checkpoints").save(1, {})


def _save_for_ever(folder: Path) -> None:
    store = CheckpointStore(folder)
    newest = store.load_newest()
    iteration = newest[0] if newest else 0
    while True:
        iteration += 1
        store.save(iteration, {"iteration": iteration, "weights": torch.full((200_000,), float(iteration))})


def test_kill_while_saving_leaves_complete_checkpoints(tmp_path: Path) -> None:
    rng = random.Random(0)
    last = 0
    for _ in range(8):
        process = multiprocessing.get_context("fork").Process(target=_save_for_ever, args=(tmp_path,), daemon=True)
        process.start()
        # The newest: those a kill left too many are removed first.
        paths = CheckpointStore(tmp_path).list_paths()[-1:]
        while CheckpointStore(tmp_path).list_paths()[-1:] == paths and process.is_alive():
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        process.kill()
        process.join()
        store = CheckpointStore(tmp_path)
        for path in store.list_paths():
            iteration, state = store.load(path)
            assert state["iteration"] == iteration
            assert (state["weights"] == iteration).all()
        newest = store.load_newest()
        assert newest is not None
        assert newest[0] > last
        last = newest[0]
    (tmp_path / ".checkpoint_000000000.pt.1.tmp").touch()  # as if killed in the middle of a write
    store.clean()
    assert not list(tmp_path.glob("*.tmp")) and not list(tmp_path.glob(".*.tmp"))
