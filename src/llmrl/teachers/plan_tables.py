"""Plan tables, and their human-readable JSON files. Shipped tables and those written by runs have the same format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from llmrl.core.atomic_files import atomic_write, describe_write_error
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.teachers.planners import Distribution
from llmrl.teachers.plans import plan_text

Row = tuple[tuple[str, float], ...]
"""Pairs of the text of a plan and its probability."""


class _PlanTableSchema(BaseModel):
    """Content of a file. Its probabilities are by sentence pattern and text of the plan."""

    model_config = ConfigDict(extra="forbid")

    domain: str
    about: str | list[str] = ""
    interchangeable_words: list[str] = Field(default=[], alias="interchangeable")
    plans: dict[str, dict[str, float]]
    corrected: dict[str, dict[str, float]] = {}


@dataclass(frozen=True)
class PlanTable:
    """Plans with their probabilities for the sentences, i.e. states in words, of one domain.

    Interchangeable words, such as colors, are written as placeholders `[1]`, `[2]`, ... in the order of their first
    appearance in a sentence, so that one row serves all sentences that differ only in these words.

    Attributes:
        rows: rows by sentence pattern, which is a sentence with placeholders.
        interchangeable_words: words that are replaced by placeholders.
    """

    rows: Mapping[str, Row]
    interchangeable_words: tuple[str, ...] = ()

    def find(self, sentence: str) -> Row | None:
        """Return the row for `sentence`, with words in place of placeholders; None if there is none."""
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

    def examples(self) -> list[str]:
        """Return an example sentence for each sentence pattern in `rows`."""
        sentences = list(self.rows)
        for number, word in enumerate(self.interchangeable_words, 1):
            sentences = [sentence.replace(f"[{number}]", word) for sentence in sentences]
        return sentences


def load_plan_table(path: Path, domain: str, corrected: bool = False) -> PlanTable:
    """Load the plan table of a file.

    Args:
        path: file.
        domain: name of the domain that the table must be for.
        corrected: whether rows under `corrected` in the file replace rows under `plans`.

    Raises:
        ConfigError: the file cannot be read, is not a plan table or is for another domain, or probabilities are
            invalid.
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
            f"teacher.table={path} holds plans for {content.domain}, but the domain is {domain}; use one for it"
        )
    rows = content.plans | (content.corrected if corrected else {})
    for sentence, row in rows.items():
        if not row or min(row.values()) <= 0 or abs(sum(row.values()) - 1) > 1e-6:
            raise ConfigError(f"teacher.table={path}: the probabilities for {sentence!r} must be > 0 and sum to 1")
    plan_rows = {sentence: tuple(row.items()) for sentence, row in rows.items()}
    return PlanTable(plan_rows, tuple(content.interchangeable_words))


def save_plan_table(path: Path, domain: str, about: str, plans: Mapping[str, Distribution]) -> None:
    """Save a plan table atomically, with sentences in alphabetical order, so that files of two runs can be compared.

    Args:
        path: file.
        domain: name of the domain.
        about: description of the table, for readers of the file.
        plans: distribution of plans by sentence.

    Raises:
        RunFolderError: the file cannot be written.
    """
    rows = {sentence: {plan_text(plan): p for plan, p in plans[sentence]} for sentence in sorted(plans)}
    content: dict[str, Any] = {"domain": domain, "about": about, "plans": rows}
    try:
        with atomic_write(path) as file:
            file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace"))
    except OSError as error:
        raise RunFolderError(f"cannot write the plan table {path}: {describe_write_error(path, error)}") from error
