"""How the agents of an earlier run were trained, from its saved config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.records import Pretraining
from llmrl.run.artifacts import read_config


def pretraining_of(run: Path) -> Pretraining | None:
    """Return how the agents of a run were trained; None if the run trained none by itself.

    Args:
        run: run folder.

    Raises:
        RunFolderError: the config cannot be read.
    """
    learn = read_config(run, ()).get("learn")
    if not isinstance(learn, Mapping) or "env_steps" not in learn:
        return None
    boxes = list(_boxes(learn.get("mechanism")))
    if not boxes:
        return Pretraining(int(learn["env_steps"]))
    low = np.min([box[0] for box in boxes], axis=0)
    high = np.max([box[1] for box in boxes], axis=0)
    return Pretraining(int(learn["env_steps"]), tuple(low.tolist()), tuple(high.tolist()))


def _boxes(mechanism: Any) -> Iterator[tuple[list[float], list[float]]]:
    """Yield the lowest and highest values of each box of `learn.mechanism`."""
    for entry in mechanism or ():
        if not isinstance(entry, Mapping):  # one list of values
            yield list(mechanism), list(mechanism)
            return
        for box in entry["mixture"]:
            yield box["low"], box["high"]
