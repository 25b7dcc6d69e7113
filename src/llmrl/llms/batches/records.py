"""What is known of batches that are under way, in files beside the cache of replies: whoever asks for a reply finds
there that it is being made, also after the run that sent the batch was killed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from llmrl.core.atomic_files import remove, replacing, why
from llmrl.core.errors import RunFolderError

FOLDER = "batches"


@dataclass(frozen=True)
class Held:
    """What a run set aside for a request of a batch: `Reservation.id`, its tokens and cost, and the run's call log."""

    id: str
    tokens: int
    cost: float | None
    log: str


@dataclass
class Record:
    """A batch, from before it is made until nobody waits for any of its replies.

    Attributes:
        account: whose batch it is.
        requests: what was set aside for each, by the request's address.
        time: when it was about to be made, seconds of `time.time`.
        uploaded: name of what was sent ahead; "": nothing was.
        batches: its name at the provider; several, if nobody heard which of these it is; none, if nobody heard any.
        n: requests that it was made with.
        path: of its file.
    """

    account: str
    requests: dict[str, Held]
    time: float = field(default_factory=time.time)
    uploaded: str = ""
    batches: list[str] = field(default_factory=list)
    n: int = 0
    path: Path = Path()

    @classmethod
    def begun(cls, folder: Path, account: str, requests: Mapping[str, Held]) -> Record:
        """Write down a batch that is about to be made.

        Raises:
            RunFolderError: it cannot be written.
        """
        path = folder / FOLDER / f"{uuid.uuid4().hex}.json"
        made = cls(account, dict(requests), n=len(requests), path=path)
        made.save()
        return made

    def save(self) -> None:
        """Write it down for good, whole or not at all.

        Raises:
            RunFolderError: it cannot be written.
        """
        content = {name: value for name, value in asdict(self).items() if name != "path"}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                file.write(json.dumps(content, indent=1).encode())
        except OSError as error:
            raise RunFolderError(
                f"cannot write {self.path}: {why(self.path, error, 'llm.cache_dir=<folder>')}"
            ) from error

    def without(self, keys: Collection[str]) -> None:
        """Wait for the replies to these requests no more; the file goes with the last of them."""
        self.requests = {key: held for key, held in self.requests.items() if key not in keys}
        if not self.requests:
            remove(self.path)
        elif self.path.exists():  # else another process had the last of its replies
            self.save()


def read_records(folder: Path, account: str, known: Collection[Path] = ()) -> list[Record]:
    """Every batch of an account that is written down beside a cache, but for those `known`; files that cannot be read
    are none."""
    found = []
    for path in sorted((folder / FOLDER).glob("*.json")):
        if path in known:
            continue
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            record = Record(**{**content, "requests": {k: Held(**v) for k, v in content["requests"].items()}})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if record.account == account:
            found.append(replace(record, path=path))
    return found
