"""Files of plan tables: JSON that people can read and edit, in one format for shipped tables and those of runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from llmrl.core.atomic_files import atomic_write, describe_write_error
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.teachers.planners import Distribution
from llmrl.teachers.plans import plan_text

Row = tuple[tuple[str, float], ...]
"""Texts of plans with their probabilities."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    domain: str
    about: str | list[str] = ""
    interchangeable: list[str] = []
    plans: dict[str, dict[str, float]]
    corrected: dict[str, dict[str, float]] = {}


@dataclass(frozen=True)
class PlanTable:
    """Plans for the sentences of one domain.

    Attributes:
        rows: rows by sentence, with interchangeable words replaced.
        words: interchangeable words, such as colors: the first that appears in a sentence is written `[1]` in `rows`,
            the
            next `[2]`, ...
    """

    domain: str
    rows: Mapping[str, Row]
    words: tuple[str, ...] = field(default=())

    def find(self, sentence: str) -> Row | None:
        """Return the row for `sentence`, in the words of the sentence; None if there is none."""
        if not self.words:
            return self.rows.get(sentence)
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, self.words))})\b")
        words = list(dict.fromkeys(pattern.findall(sentence)))
        abstract = pattern.sub(lambda match: f"[{words.index(match.group()) + 1}]", sentence)
        row = self.rows.get(abstract)
        if row is None:
            return None
        replacements = {f"[{i + 1}]": word for i, word in enumerate(words)}
        return tuple(
            (re.sub(r"\[\d+\]", lambda match: replacements.get(match.group(), match.group()), t), p) for t, p in row
        )

    def examples(self) -> dict[str, str]:
        """Return an example sentence for each pattern in `rows`."""
        return {
            abstract: re.sub(
                r"\[(\d+)\]",
                lambda m: self.words[int(m[1]) - 1] if 1 <= int(m[1]) <= len(self.words) else m[0],
                abstract,
            )
            for abstract in self.rows
        }


def read_table(path: Path, domain: str, corrected: bool = False) -> PlanTable:
    """Read the table in a file; with `corrected`, its rows under that name replace those of `plans`.

    Raises:
        ConfigError: no such file, no table, or a table of another domain.
    """
    try:
        content = _File.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"teacher.table={path} cannot be read: {error.strerror or error}") from error
    except (ValidationError, UnicodeDecodeError) as error:
        reason = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)
        raise ConfigError(
            f"teacher.table={path} is no plan table ({reason}); use plans.json of a run with teacher=llm"
        ) from error
    if content.domain != domain:
        raise ConfigError(
            f"teacher.table={path} holds plans for {content.domain}, but the domain is {domain}; use another"
        )
    rows = content.plans | (content.corrected if corrected else {})
    for sentence, row in rows.items():
        if not row or min(row.values()) <= 0 or abs(sum(row.values()) - 1) > 1e-6:
            raise ConfigError(f"teacher.table={path}: the probabilities for {sentence!r} must be > 0 and sum to 1")
    return PlanTable(domain, {s: tuple(row.items()) for s, row in rows.items()}, tuple(content.interchangeable))


def write_table(path: Path, domain: str, about: str, plans: Mapping[str, Distribution]) -> None:
    """Write a table atomically, with sentences in alphabetical order, so that files of two runs can be compared.

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
