"""Planner that reads plans from a table in a file instead of asking a language model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from llmrl.core.errors import ConfigError
from llmrl.core.state_fields import StateFields
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.teachers.debate import ANNOUNCED
from llmrl.teachers.domain import Domain
from llmrl.teachers.plan_tables import PlanTable, load_plan_table
from llmrl.teachers.planners import Distribution, distribution
from llmrl.teachers.plans import UnknownSkill

logger = logging.getLogger(__name__)

PUBLISHED = "published"
CORRECTED = "corrected"


class OfflinePlanner(StateFields):
    """Planner that reads plans from a table.

    Invalid plans of a row are omitted, as with a language model's replies, and the others share the probability. With
    `parity` no plan is invalid.

    Args:
        domain: domain of the plans.
        table: `published` or `corrected`, the tables shipped with the domain, or the path of a JSON file in the format
            that a run with `teacher=llm` writes (`plans.json`).
        missing_state: reaction to a sentence without a row: the domain's `fallback`, which is counted, or an `error`.

    Raises:
        ConfigError: the table does not exist, a row has no valid plan, or a plan in a user's file has an unknown skill.
    """

    _state_fields = ("fallbacks",)

    def __init__(
        self, domain: Domain, table: str = CORRECTED, missing_state: Literal["fallback", "error"] = "fallback"
    ) -> None:
        self.domain, self.missing_state = domain, missing_state
        self._name, self._is_custom = table, table not in (PUBLISHED, CORRECTED)
        self._table = _find(domain, table)
        self._known: dict[str, Distribution | None] = {}
        self._fallback: Distribution = ((domain.fallback, 1.0),)
        self.fallbacks = 0
        examples = self._table.examples()
        for sentence in examples:  # invalid rows end the run before its first look-up
            self._known[sentence] = self._read(sentence)
        if n_debates := sum(ANNOUNCED in sentence for sentence in examples):
            logger.warning(
                "%d of %d rows of the plan table %s are from a debate, but teacher=offline has none: these rows are "
                "unused, and plans are those before the debate",
                n_debates,
                len(examples),
                table,
            )

    def plans(self, sentences: Sequence[str]) -> list[Distribution]:
        """Return the plans of each sentence; raise ConfigError for one without a row if `missing_state` is `error`."""
        answers = []
        for sentence in sentences:
            if sentence not in self._known:
                self._known[sentence] = self._read(sentence)
            plans = self._known[sentence]
            self.fallbacks += plans is None
            answers.append(self._fallback if plans is None else plans)
        return answers

    def describe(self) -> dict[str, str]:
        return {"planner": f"the table {self._name}"}

    def metrics(self) -> dict[str, float]:
        """Return teacher/fallbacks: look-ups of states without a row, each counted once per update."""
        return {"teacher/fallbacks": float(self.fallbacks)}

    def _read(self, sentence: str) -> Distribution | None:
        row = self._table.find(sentence)
        if row is None:
            message = f"the plan table {self._name} of {self.domain.name} has no row for {sentence!r}"
            if self.missing_state == "error":
                raise ConfigError(f"{message}; add one, or set teacher.missing_state=fallback")
            logger.warning("%s; the plan is %s", message, ", ".join(map(str, self.domain.fallback)))
            return None
        plans, reasons = [], []
        for text, probability in row:
            try:
                plans.append((self.domain.read_plan(text, sentence), probability))
            except UnknownSkill as error:
                if self._is_custom:  # the shipped tables are as published
                    raise ConfigError(
                        f"the plan table {self._name} has no valid plan for {sentence!r} in {text!r}: {error}"
                    ) from error
                reasons.append(str(error))
            except InvalidReply as error:
                reasons.append(str(error))
        if not plans:
            raise ConfigError(f"the plan table {self._name} has no valid plan for {sentence!r}: {'; '.join(reasons)}")
        return distribution(plans)


def _find(domain: Domain, table: str) -> PlanTable:
    if table not in (PUBLISHED, CORRECTED):
        return load_plan_table(Path(table).expanduser(), domain.name)
    if domain.tables is None:
        raise ConfigError(
            f"no plan table is shipped for {domain.name}; give teacher.table=<plans.json of a run with teacher=llm>, "
            "or use teacher=llm or teacher=oracle"
        )
    return load_plan_table(Path(domain.tables), domain.name, corrected=table == CORRECTED)
