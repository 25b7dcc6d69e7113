"""Plan tables as files: JSON that a person can read and edit, the same for shipped tables and for those of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from llmrl.core.atomic_files import replacing, why
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.teachers.planners import Distribution
from llmrl.teachers.plans import plan_text

Row = tuple[tuple[str, float], ...]
"""Texts of plans and how often each was given."""


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
        rows: by sentence, with interchangeable words replaced.
        words: words such as colours that mean nothing by themselves: the first that appears in a sentence is written
            `[1]` in `rows`, the next `[2]`, ...
    """

    domain: str
    rows: Mapping[str, Row]
    words: tuple[str, ...] = field(default=())

    def find(self, sentence: str) -> Row | None:
        """The row for `sentence`, in its own words; None if there is none."""
        if not self.words:
            return self.rows.get(sentence)
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, self.words))})\b")
        found = list(dict.fromkeys(pattern.findall(sentence)))
        abstract = pattern.sub(lambda match: f"[{found.index(match.group()) + 1}]", sentence)
        row = self.rows.get(abstract)
        if row is None:
            return None
        own = {f"[{i + 1}]": word for i, word in enumerate(found)}
        return tuple((re.sub(r"\[\d+\]", lambda match: own.get(match.group(), match.group()), t), p) for t, p in row)

    def examples(self) -> dict[str, str]:
        """For each sentence in `rows` one of those that it stands for."""
        return {
            abstract: re.sub(
                r"\[(\d+)\]",
                lambda m: self.words[int(m[1]) - 1] if 1 <= int(m[1]) <= len(self.words) else m[0],
                abstract,
            )
            for abstract in self.rows
        }


def read_table(path: Path, domain: str, corrected: bool = False) -> PlanTable:
    """The table in a file; with `corrected`, rows under that name replace those of `plans`.

    Raises:
        ConfigError: no such file, no table, or one of another domain.
    """
    try:
        content = _File.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"teacher.table={path} cannot be read: {error.strerror or error}") from error
    except (ValidationError, UnicodeDecodeError) as error:
        shown = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)
        raise ConfigError(
            f"teacher.table={path} is no plan table ({shown}); a run with teacher=llm writes one, plans.json"
        ) from error
    if content.domain != domain:
        raise ConfigError(f"teacher.table={path} holds plans for {content.domain}, and the domain here is {domain}")
    chosen = content.plans | (content.corrected if corrected else {})
    for sentence, row in chosen.items():
        if not row or min(row.values()) <= 0 or abs(sum(row.values()) - 1) > 1e-6:
            raise ConfigError(f"teacher.table={path}: the probabilities for {sentence!r} must be > 0 and sum to 1")
    return PlanTable(domain, {s: tuple(row.items()) for s, row in chosen.items()}, tuple(content.interchangeable))


def write_table(path: Path, domain: str, about: str, plans: Mapping[str, Distribution]) -> None:
    """Whole or not at all; sentences in alphabetical order, so that files of two runs can be compared.

    Raises:
        RunFolderError: it cannot be written.
    """
    rows = {sentence: {plan_text(plan): p for plan, p in plans[sentence]} for sentence in sorted(plans)}
    content: dict[str, Any] = {"domain": domain, "about": about, "plans": rows}
    try:
        with replacing(path) as file:
            file.write((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace"))
    except OSError as error:
        raise RunFolderError(f"cannot write the plan table {path}: {why(path, error)}") from error
