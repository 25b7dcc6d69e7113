"""What the proposals of a design run scored, row by row, and which of them is the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmrl.core.pooling import Pool
from llmrl.core.spaces import EnvSpec
from llmrl.loops.naming import Naming
from llmrl.loops.scoring import Score


class DesignHistory:
    """The rows of a summary's `history`, and what all measurements say of each vector in each context.

    Args:
        spec: of the environment, which has a mechanism.
        episodes: of a society that a measurement is the mean over.

    Attributes:
        rows: one a proposal, in their order.
        pool: of what the rows say; follows from them.
    """

    def __init__(self, spec: EnvSpec, episodes: int) -> None:
        self.spec, self.episodes = spec, episodes
        self.rows: list[dict[str, Any]] = []
        self.pool = Pool()

    def add(self, step: int, scores: Sequence[Score]) -> None:
        """Write down what the proposals of `step`, counted from 1, scored."""
        for i, each in enumerate(scores):
            outcome = each.outcome
            row = {
                "step": step,
                "candidate": i,
                "objective": outcome.value,
                "standard_error": outcome.standard_error,
                "values": outcome.values.tolist(),
                **({"societies": each.societies} if len(each.societies) > 1 else {}),
                "mechanism": self._mechanism(outcome.vector),
                "context": None if outcome.context is None else self.spec.contexts[outcome.context],
            }
            self.restore([row])

    def restore(self, rows: Sequence[dict[str, Any]]) -> None:
        """Take in rows as they were written down."""
        for row in rows:
            self.rows.append(row)
            units, vector = len(row.get("societies", [0])), list(row["mechanism"].values())
            told = (row["objective"], row["standard_error"], units, units * self.episodes)
            self.pool.add(vector, *told, row["context"], f"step {row['step']}")

    def row(self, vector: Sequence[float] | np.ndarray, context: int | str | None) -> dict[str, Any]:
        """What every row of a summary says of a vector."""
        return {"mechanism": self._mechanism(np.asarray(vector)), "context": context}

    def best(self, naming: Naming | None) -> list[dict[str, Any]]:
        """The best proposal of each context, highest objective first: by what the steps measured or, once `naming` is
        over, the winners of what was measured again, by what was measured after they had won."""
        if naming is not None and naming.over:
            rows = naming.winners(self.row)
        else:
            found = [best for context in self.pool.contexts if (best := self.pool.best(context)) is not None]
            rows = [
                self.row(each.vector, each.context)
                | {"objective": each.value, "standard_error": each.standard_error, "measurements": each.measurements}
                for each in found
            ]
        return sorted(rows, key=lambda row: -float(row["objective"]))

    def contestants(self, n: int) -> dict[int | str | None, list[Sequence[float]]]:
        """The vectors of the `n` highest estimates of each context, highest first."""
        return {c: [each.vector for each in self.pool.ranked(c)[:n]] for c in self.pool.contexts}

    @property
    def several(self) -> bool:
        """Whether there is something to choose from in a context."""
        return any(len(self.pool.ranked(context)) > 1 for context in self.pool.contexts)

    def _mechanism(self, vector: np.ndarray) -> dict[str, float]:
        assert self.spec.mechanism is not None
        return dict(zip(self.spec.mechanism.names, vector.tolist(), strict=True))
