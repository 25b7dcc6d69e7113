"""The address of a request: a hash over everything that can change its answer, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llmrl.core.records import ChatRequest, State
from llmrl.llms.images import named


def request_key(identity: Mapping[str, Any], request: ChatRequest, stream: int | None = None) -> str:
    """SHA-256, in hex, of model identity, messages, schema, repeat index, place and stream.

    Left out is what serves only readers (`purpose`, names of prompts) and what changes how, but not what, is asked
    (time-outs, limits, prices).

    Args:
        identity: what the model is: its name, server and sampling parameters, as JSON-compatible values.
        request: the question.
        stream: whose sample of the model's answers this is: a run's seed, or None if all runs share one.
    """
    content = {
        "model": dict(identity),
        "messages": named(request.messages),
        "schema": request.schema,
        "repeat": request.repeat,
        "stream": stream,
        **({"place": request.place} if request.place else {}),
    }
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Repeats:
    """Numbers the repetitions of a question within a run.

    A model asked the same twice gives two independent answers; with the cache in between it must still do so. The
    counts are part of the run's state, so that a resumed run asks again for the very answers it has had.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def number(self, requests: Sequence[ChatRequest]) -> list[ChatRequest]:
        """`requests` with `repeat` raised by the times each was asked before; those that name their place stay."""
        numbered = []
        for request in requests:
            if request.place:
                numbered.append(request)
                continue
            # 60 bits of the address tell questions apart and fit a checkpoint's integers.
            question = int(request_key({}, request)[:15], 16)
            numbered.append(replace(request, repeat=request.repeat + self._counts[question]))
            self._counts[question] += 1
        return numbered

    def state_dict(self) -> State:
        return {
            "questions": np.fromiter(self._counts.keys(), dtype=np.int64, count=len(self._counts)),
            "counts": np.fromiter(self._counts.values(), dtype=np.int64, count=len(self._counts)),
        }

    def load_state_dict(self, state: State) -> None:
        pairs = zip(state["questions"].tolist(), state["counts"].tolist(), strict=True)
        self._counts = Counter(dict(pairs))
