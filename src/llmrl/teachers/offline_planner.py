"""Plan tables, which are stored in JSON files, and a planner with plans from a table.

Tables of this package and tables written by runs have the same format.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llmrl.core.atomic_files import atomic_write, describe_write_error
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.state_fields import StateFields
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.teachers.domain import ANNOUNCEMENT_PREFIX, Domain
from llmrl.teachers.planners import PlanDistribution, normalize_weights
from llmrl.teachers.plans import UnknownSkill, format_plan

WeightedPlanTexts = tuple[tuple[str, float], ...]
"""Pairs of the text of a plan and its probability."""


class _PlanTableSchema(BaseModel):
    """Content of a plan table's file. `plans` and `corrected`: sentence pattern -> text of a plan -> probability."""

    model_config = ConfigDict(extra="forbid")

    domain: str
    about: str | list[str] = ""
    interchangeable_words: list[str] = Field(default=[], alias="interchangeable")
    plans: dict[str, dict[str, float]]
    corrected: dict[str, dict[str, float]] = {}


@dataclass(frozen=True)
class PlanTable:
    """Distributions over plans for the sentences of one domain.

    A sentence pattern is a sentence in which interchangeable words, such as colors, are replaced by `[1]`, `[2]`, ...
    in the order of their first appearance. All sentences that differ only in these words therefore share a row.

    Attributes:
        rows: sentence pattern -> texts of plans with their probabilities.
        interchangeable_words: words that are replaced in sentence patterns.
    """

    rows: Mapping[str, WeightedPlanTexts]
    interchangeable_words: tuple[str, ...] = ()

    def find_plans(self, sentence: str) -> WeightedPlanTexts | None:
        """Return the row for `sentence`, in which words replace placeholders; None if there is none."""
        if not self.interchangeable_words:
            return self.rows.get(sentence)
        alternatives = "|".join(map(re.escape, self.interchangeable_words))
        pattern = re.compile(rf"\b({alternatives})\b")
        words = list(dict.fromkeys(pattern.findall(sentence)))
        sentence_pattern = pattern.sub(lambda match: f"[{words.index(match.group()) + 1}]", sentence)
        row = self.rows.get(sentence_pattern)
        if row is None:
            return None
        replacements = {f"[{i + 1}]": word for i, word in enumerate(words)}
        return tuple(
            (re.sub(r"\[\d+\]", lambda match: replacements.get(match.group(), match.group()), text), probability)
            for text, probability in row
        )

    def list_example_sentences(self) -> list[str]:
        """Return an example sentence for each sentence pattern in `rows`."""
        sentences = list(self.rows)
        for number, word in enumerate(self.interchangeable_words, 1):
            sentences = [sentence.replace(f"[{number}]", word) for sentence in sentences]
        return sentences


def load_plan_table(path: Path, domain: str, corrected: bool = False) -> PlanTable:
    """Load a plan table.

    Args:
        path: file of the table.
        domain: name of the domain for which the table must be.
        corrected: whether rows under `corrected` in the file replace rows under `plans`.

    Raises:
        ConfigError: the file cannot be read, is no plan table or is for another domain, or probabilities are invalid.
    """
    try:
        content = _PlanTableSchema.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"teacher.table={path} cannot be read: {error.strerror or error}") from error
    except (ValidationError, UnicodeDecodeError) as error:
        reason = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)
        raise ConfigError(
            f"teacher.table={path} is not a plan table ({reason}); use plans.json of a run with teacher=llm"
        ) from error
    if content.domain != domain:
        raise ConfigError(
            f"teacher.table={path} contains plans for {content.domain}, but the domain is {domain}; use one for it"
        )
    rows = content.plans | (content.corrected if corrected else {})
    for sentence, row in rows.items():
        if not row or min(row.values()) <= 0 or abs(sum(row.values()) - 1) > 1e-6:
            raise ConfigError(f"teacher.table={path}: the probabilities for {sentence!r} must be > 0 and sum to 1")
    plan_rows = {sentence: tuple(row.items()) for sentence, row in rows.items()}
    return PlanTable(plan_rows, tuple(content.interchangeable_words))


def save_plan_table(path: Path, domain: str, about: str, plans: Mapping[str, PlanDistribution]) -> None:
    """Save a plan table atomically, with sentences in alphabetical order, so that files of two runs can be compared.

    Args:
        path: file to write.
        domain: name of the domain.
        about: description of the table, for human readers of the file.
        plans: sentence -> distribution over plans.

    Raises:
        RunFolderError: the file cannot be written.
    """
    rows = {sentence: {format_plan(plan): p for plan, p in plans[sentence]} for sentence in sorted(plans)}
    content: dict[str, Any] = {"domain": domain, "about": about, "plans": rows}
    try:
        with atomic_write(path) as file:
            file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace"))
    except OSError as error:
        raise RunFolderError(f"cannot write the plan table {path}: {describe_write_error(path, error)}") from error


logger = logging.getLogger(__name__)

PUBLISHED_TABLE = "published"
CORRECTED_TABLE = "corrected"


class OfflinePlanner(StateFields):
    """Planner with plans from a table.

    Invalid plans of a row are omitted, as in replies of a language model, and the probabilities of the others are
    normalized. If the domain has `parity`, no plan is invalid.

    Args:
        domain: domain of the plans.
        table: `published` or `corrected`, both shipped with the domain, or the path of a JSON file in the format that
            a run with `teacher=llm` writes (`plans.json`).
        missing_state: for a sentence without a row: `fallback`: use the domain's fallback; `error`: raise an error.

    Raises:
        ConfigError: the table does not exist, a row has no valid plan, or a plan in a user's file has an unknown skill.
    """

    _state_fields = ("fallbacks",)

    def __init__(
        self, domain: Domain, table: str = CORRECTED_TABLE, missing_state: Literal["fallback", "error"] = "fallback"
    ) -> None:
        self.domain, self.missing_state = domain, missing_state
        self._table_name, self._is_user_table = table, table not in (PUBLISHED_TABLE, CORRECTED_TABLE)
        self._table = _load_table(domain, table)
        self._read_plans_cached = functools.cache(self._read_plans)
        self._fallback_plans: PlanDistribution = ((domain.fallback, 1.0),)
        self.fallbacks = 0
        example_sentences = self._table.list_example_sentences()
        for sentence in example_sentences:  # detect invalid rows before the first look-up
            self._read_plans_cached(sentence)
        if n_debates := sum(ANNOUNCEMENT_PREFIX in sentence for sentence in example_sentences):
            logger.warning(
                "%d of %d rows of the plan table %s are from a debate, but teacher=offline has no debate: these rows "
                "are not used, and plans are those before the debate",
                n_debates,
                len(example_sentences),
                table,
            )

    def plans(self, sentences: Sequence[str]) -> list[PlanDistribution]:
        """Return the plans of each sentence; raise ConfigError for one without a row if `missing_state` is `error`."""
        distributions = [self._read_plans_cached(sentence) for sentence in sentences]
        self.fallbacks += distributions.count(None)
        return [self._fallback_plans if plans is None else plans for plans in distributions]

    def describe(self) -> dict[str, str]:
        return {"planner": f"the table {self._table_name}"}

    def metrics(self) -> dict[str, float]:
        """Return teacher/fallbacks: look-ups of states without a row, each counted once per update."""
        return {"teacher/fallbacks": float(self.fallbacks)}

    def _read_plans(self, sentence: str) -> PlanDistribution | None:
        row = self._table.find_plans(sentence)
        if row is None:
            message = f"the plan table {self._table_name} of {self.domain.name} has no row for {sentence!r}"
            if self.missing_state == "error":
                raise ConfigError(f"{message}; add one, or set teacher.missing_state=fallback")
            logger.warning("%s; the plan is %s", message, ", ".join(map(str, self.domain.fallback)))
            return None
        plans, reasons = [], []
        for text, probability in row:
            try:
                plans.append((self.domain.read_plan(text, sentence), probability))
            except UnknownSkill as error:
                if self._is_user_table:  # published tables contain such plans
                    raise ConfigError(
                        f"the plan table {self._table_name} has no valid plan for {sentence!r} in {text!r}: {error}"
                    ) from error
                reasons.append(str(error))
            except InvalidReply as error:
                reasons.append(str(error))
        if not plans:
            raise ConfigError(
                f"the plan table {self._table_name} has no valid plan for {sentence!r}: {'; '.join(reasons)}"
            )
        return normalize_weights(plans)


def _load_table(domain: Domain, table: str) -> PlanTable:
    if table not in (PUBLISHED_TABLE, CORRECTED_TABLE):
        return load_plan_table(Path(table).expanduser(), domain.name)
    if domain.tables is None:
        raise ConfigError(
            f"no plan table is shipped for {domain.name}; give teacher.table=<plans.json of a run with teacher=llm>, "
            "or use teacher=llm or teacher=oracle"
        )
    return load_plan_table(Path(domain.tables), domain.name, corrected=table == CORRECTED_TABLE)
