"""Planner with frozen plans: a table from a file instead of a language model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from llmrl.core.errors import ConfigError
from llmrl.core.records import State
from llmrl.llms.structured import InvalidReply
from llmrl.teachers.debate import ANNOUNCED
from llmrl.teachers.domain import Domain
from llmrl.teachers.plan_tables import PlanTable, read_table
from llmrl.teachers.planners import Distribution, distribution
from llmrl.teachers.plans import UnknownSkill

logger = logging.getLogger(__name__)

PUBLISHED = "published"
CORRECTED = "corrected"


class OfflinePlanner:
    """Planner that reads plans from a table.

    Invalid plans of a row are left out, as with a language model's replies, and the others share the probability. With
    `parity` no plan is invalid.

    Args:
        domain: domain of the plans.
        table: `published` or `corrected`, the tables shipped with the domain, or the path of a JSON file in the format
            that a run with `teacher=llm` writes (`plans.json`).
        miss: reaction to a sentence without a row: the domain's `fallback`, which is counted, or an `error`.

    Raises:
        ConfigError: the table does not exist, a row has no valid plan or matches no state, or a plan in a user's file
            has an unknown skill.
    """

    def __init__(self, domain: Domain, table: str = CORRECTED, miss: Literal["fallback", "error"] = "fallback") -> None:
        self.domain, self.miss = domain, miss
        self._name, self._own = table, table not in (PUBLISHED, CORRECTED)
        self._table = _find(domain, table)
        self._known: dict[str, Distribution | None] = {}
        self._fallback: Distribution = ((domain.fallback, 1.0),)
        self.fallbacks = 0
        self._check()

    def plans(self, sentences: Sequence[str]) -> list[Distribution]:
        """Return the plans of each sentence; raise ConfigError for one without a row if `miss` is `error`."""
        found = []
        for sentence in sentences:
            if sentence not in self._known:
                self._known[sentence] = self._read(sentence)
            plans = self._known[sentence]
            self.fallbacks += plans is None
            found.append(self._fallback if plans is None else plans)
        return found

    def describe(self) -> dict[str, str]:
        return {"planner": f"the table {self._name}"}

    def metrics(self) -> dict[str, float]:
        """Return teacher/fallbacks: look-ups of states without a row, each counted once per update."""
        return {"teacher/fallbacks": float(self.fallbacks)}

    def state_dict(self) -> State:
        return {"fallbacks": self.fallbacks}

    def load_state_dict(self, state: State) -> None:
        self.fallbacks = int(state["fallbacks"])

    def _check(self) -> None:
        """Check all rows before the first look-up; raise ConfigError for a faulty one."""
        examples = self._table.examples()
        for abstract, sentence in examples.items():
            if self._table.find(sentence) is None:
                raise ConfigError(
                    f"the plan table {self._name} has the row {abstract!r}, which no state can be: the interchangeable "
                    f"words {', '.join(self._table.words)} are written [1], [2], ... in the order of their appearance"
                )
            self._known[sentence] = self._read(sentence)
        debated = sum(ANNOUNCED in abstract for abstract in examples)
        if debated:
            logger.warning(
                "%d of %d rows of the plan table %s are of a debate, and with teacher=offline there is none: they are "
                "never looked up, and plans are those that agents had before they heard the others",
                debated,
                len(examples),
                self._name,
            )

    def _read(self, sentence: str) -> Distribution | None:
        row = self._table.find(sentence)
        if row is None:
            message = f"the plan table {self._name} of {self.domain.name} has no row for {sentence!r}"
            if self.miss == "error":
                raise ConfigError(f"{message}; add one, or set teacher.miss=fallback")
            logger.warning("%s; the plan is %s", message, ", ".join(map(str, self.domain.fallback)))
            return None
        plans, faults = [], []
        for text, probability in row:
            try:
                plans.append((self.domain.read_plan(text, sentence), probability))
            except UnknownSkill as fault:
                if self._own:  # the shipped tables are kept as published
                    raise ConfigError(
                        f"the plan table {self._name} has no valid plan for {sentence!r} in {text!r}: {fault}"
                    ) from fault
                faults.append(str(fault))
            except InvalidReply as fault:
                faults.append(str(fault))
        if not plans:
            raise ConfigError(f"the plan table {self._name} has no valid plan for {sentence!r}: {'; '.join(faults)}")
        return distribution(plans)


def _find(domain: Domain, table: str) -> PlanTable:
    if table not in (PUBLISHED, CORRECTED):
        return read_table(Path(table).expanduser(), domain.name)
    if domain.tables is None:
        raise ConfigError(
            f"no plan table is shipped for {domain.name}; give teacher.table=<plans.json of a run with teacher=llm>, "
            "or use teacher=llm or teacher=oracle"
        )
    return read_table(Path(domain.tables), domain.name, corrected=table == CORRECTED)
