"""Records of pending batches, in files next to the cache of replies.

A run finds there that a reply is being generated, even if the run that sent the batch was killed.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from llmrl.core.atomic_files import atomic_write, describe_write_error, remove_ignoring_errors
from llmrl.core.errors import RunFolderError

FOLDER = "batches"


@dataclass(frozen=True)
class HeldReservation:
    """Reservation that a run made for a request of a batch.

    Attributes:
        id: id of the `Reservation`.
        tokens: reserved tokens.
        cost: reserved cost; None: unknown.
        log: path of the run's call log.
    """

    id: str
    tokens: int
    cost: float | None
    log: str


@dataclass
class Record:
    """Batch, from before its creation until all its replies have been fetched.

    Attributes:
        account: account that the batch belongs to.
        requests: reservation of each request that is not done, by cache key.
        time: time before creation, seconds of `time.time`.
        uploaded: name of the uploaded file; "": there is none.
        batches: name of the batch at the provider; several names if it is not known which one it is; empty if unknown.
        n: number of requests at creation.
        path: path of the record's file.
    """

    account: str
    requests: dict[str, HeldReservation]
    time: float = field(default_factory=time.time)
    uploaded: str = ""
    batches: list[str] = field(default_factory=list)
    n: int = 0
    path: Path = Path()

    @classmethod
    def create_file(cls, folder: Path, account: str, requests: Mapping[str, HeldReservation]) -> Record:
        """Write the record of a batch that is about to be created.

        Raises:
            RunFolderError: it cannot be written.
        """
        path = folder / FOLDER / f"{uuid.uuid4().hex}.json"
        record = cls(account, dict(requests), n=len(requests), path=path)
        record.save()
        return record

    def save(self) -> None:
        """Write the record to its file atomically.

        Raises:
            RunFolderError: it cannot be written.
        """
        content = {name: value for name, value in asdict(self).items() if name != "path"}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self.path) as file:
                file.write(json.dumps(content, indent=1).encode())
        except OSError as error:
            raise RunFolderError(
                f"cannot write {self.path}: {describe_write_error(self.path, error, 'llm.cache_dir=<folder>')}"
            ) from error

    def discard(self, keys: Collection[str]) -> None:
        """Remove requests from the record; its file is deleted with the last one."""
        self.requests = {key: reservation for key, reservation in self.requests.items() if key not in keys}
        if not self.requests:
            remove_ignoring_errors(self.path)
        elif self.path.exists():  # else another process had the last of its replies
            self.save()


def read_records(folder: Path, account: str, excluded: Collection[Path] = ()) -> list[Record]:
    """Return the recorded batches of an account, except those with paths in `excluded`; skip unreadable files."""
    records = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        if path in excluded:
            continue
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            record = Record(
                **{**content, "requests": {k: HeldReservation(**v) for k, v in content["requests"].items()}}
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if record.account == account:
            records.append(replace(record, path=path))
    return records
