"""Rate limits of a provider: requests in flight, requests and tokens per minute.

Requests are counted over all processes of a user on this machine. Those that have started are stored in an SQLite
database. Requests in flight are locks on bytes of a file, which the kernel releases when their process ends, however it
ends.
"""

from __future__ import annotations

import copy
import fcntl
import hashlib
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.privacy import make_folder
from llmrl.core.ranges import PositiveInt

POLL_S = 0.05
"""Seconds between two checks for a free slot."""
WINDOW = 60.0
"""Length of the window of rate limits in seconds; providers state their limits per minute."""
_TABLES = """
CREATE TABLE IF NOT EXISTS started (id INTEGER PRIMARY KEY, account TEXT, time REAL, tokens INTEGER);
CREATE INDEX IF NOT EXISTS by_account ON started (account, time);
CREATE INDEX IF NOT EXISTS by_time ON started (time);
CREATE TABLE IF NOT EXISTS held (account TEXT PRIMARY KEY, since REAL, until REAL);
"""
_BUSY_S = 60.0  # maximum seconds that a transaction waits for others, which take milliseconds
_ACCOUNT_BITS = 40  # bits of the account in a slot's number, above the bits of the slot within the account
_SLOT_BITS = 20


class RateLimit:
    """Rate limiter that delays requests until the provider's limits allow them.

    Limits hold in every window of 60 seconds, over all threads that use this limiter, and after `shared` over all
    processes of the user on this machine. The tokens of a request are an estimate until its reply reports them.

    Args:
        concurrency: maximum number of requests in flight.
        requests_per_minute, tokens_per_minute: the provider's limits, prompt and reply tokens together; None: no limit.
        clock: monotonic time in seconds, the same for all processes of the machine.
    """

    def __init__(
        self,
        concurrency: PositiveInt = 8,
        requests_per_minute: PositiveInt | None = None,
        tokens_per_minute: PositiveInt | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.concurrency = concurrency
        self.requests_per_minute, self.tokens_per_minute = requests_per_minute, tokens_per_minute
        self._clock = clock
        self._account, self._first_slot, self._path = "", 0, Path(":memory:")
        self._lock = threading.Lock()
        self._slots = _Slots(None)
        self._memory: sqlite3.Connection | None = sqlite3.connect(
            ":memory:", check_same_thread=False, isolation_level=None
        )
        self._memory.executescript(_TABLES)

    def shared(self, account: str | None) -> RateLimit:
        """Return a limiter with these limits that counts all requests of `account` on this machine.

        Return this limiter if `account` is None. Only a digest of the name is stored.

        Raises:
            ConfigError: the folder that processes share cannot be written.
        """
        if account is None:
            return self
        limiter = copy.copy(self)
        digest = hashlib.sha256(account.encode()).digest()
        limiter._account = digest.hex()[:16]
        limiter._first_slot = int.from_bytes(digest[: _ACCOUNT_BITS // 8]) << _SLOT_BITS
        limiter._memory, limiter._lock = None, threading.Lock()
        try:
            folder = shared_folder()
            make_folder(folder, private=True)
            limiter._path, limiter._slots = folder / "requests.sqlite", _Slots.of(folder / "slots")
            with limiter._connection() as database:
                database.executescript(_TABLES)
        except (OSError, RuntimeError, sqlite3.Error) as error:  # RuntimeError: there is no home folder
            raise ConfigError(
                f"llm.limits: the folder of the shared request counts cannot be used ({error}); set XDG_CACHE_HOME to "
                "a writable folder"
            ) from error
        return limiter

    @contextmanager
    def slot(self, wait: Callable[[float], None] = time.sleep) -> Iterator[None]:
        """Occupy one of the `concurrency` slots for the duration of a `with` block; wait until one is free."""
        while (slot := self._slots.acquire(self._first_slot, self.concurrency)) is None:
            wait(POLL_S)
        try:
            yield
        finally:
            self._slots.release(slot)

    def start(self, tokens: int, wait: Callable[[float], None] = time.sleep) -> Callable[[int], None]:
        """Wait until a request of about `tokens` may start; return a function that corrects the number of tokens.

        A request with more tokens than a minute allows starts once no other request is counted.
        """
        while True:
            delay, number = self._try_start(tokens)
            if delay <= 0:
                return lambda real: self._correct(number, real)
            wait(delay)

    def hold(self, seconds: float) -> None:
        """Start no request for the next `seconds`, because the server asked to wait."""
        with self._transaction() as database:
            now = self._clock()
            query = "SELECT max(until) FROM held WHERE account = ? AND since <= ?"
            previous_end = database.execute(query, (self._account, now)).fetchone()[0] or now
            row = "INSERT OR REPLACE INTO held (account, since, until) VALUES (?, ?, ?)"
            database.execute(row, (self._account, now, max(previous_end, now + seconds)))

    def _try_start(self, tokens: int) -> tuple[float, int]:
        """Record a request of about `tokens` that starts now, if the limits of a window allow it.

        Returns:
            Seconds after which to try again, 0 if the request has started; and the number of the request.
        """
        with self._transaction() as database:
            now = self._clock()  # within the transaction, so that times and numbers have the same order
            # Times after now were recorded before the machine was restarted.
            database.execute("DELETE FROM started WHERE time <= ? OR time > ?", (now - WINDOW, now))
            query = "SELECT until FROM held WHERE account = ? AND since <= ? AND until > ?"
            if pause := database.execute(query, (self._account, now, now)).fetchone():
                return pause[0] - now, 0
            window = "SELECT count(*), coalesce(sum(tokens), 0), min(time) FROM started WHERE account = ?"
            n_requests, n_tokens, first = database.execute(window, (self._account,)).fetchone()
            exceeds_requests = self.requests_per_minute is not None and n_requests >= self.requests_per_minute
            exceeds_tokens = self.tokens_per_minute is not None and n_tokens + tokens > self.tokens_per_minute
            if n_requests and (exceeds_requests or exceeds_tokens):
                return max(first + WINDOW - now, 0.001), 0
            row = "INSERT INTO started (account, time, tokens) VALUES (?, ?, ?)"
            return 0.0, database.execute(row, (self._account, now, tokens)).lastrowid or 0

    def _correct(self, number: int, tokens: int) -> None:
        """Set the real number of tokens of a request."""
        with self._transaction() as database:
            database.execute("UPDATE started SET tokens = ? WHERE id = ?", (tokens, number))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock, self._connection() as database:
                database.execute("BEGIN IMMEDIATE")
                with database:  # commits
                    yield database
        except sqlite3.Error as error:
            raise LLMError(f"the shared request counts in {self._path} cannot be read: {error}") from error

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if self._memory is not None:
            yield self._memory
            return
        database = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = OFF")  # nothing has to survive a power cut
            yield database
        finally:
            database.close()


def shared_folder() -> Path:
    """Return the folder that the processes of this user on this machine share.

    It is `$XDG_CACHE_HOME/llmrl/rate_limits/<host>`, by default in ~/.cache. The path contains the host because several
    machines may have the same home folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "llmrl" / "rate_limits" / socket.gethostname()


class _Slots:
    """Slots that one process at a time can occupy, as locks on bytes of a file.

    Without a file, they belong to this object.
    """

    def __init__(self, path: Path | None) -> None:
        # Never closed: that would release all locks of this process on the file.
        self._file = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._occupied: set[int] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, path: Path) -> _Slots:
        """Return the slots of a file; a process has one object for each file."""
        with _file_slots_lock:
            if path not in _file_slots:
                _file_slots[path] = cls(path)
            return _file_slots[path]

    def acquire(self, first: int, n: int) -> int | None:
        """Occupy the first free slot of `n` slots and return it; return None if all are occupied."""
        with self._lock:
            for slot in range(first, first + n):
                if slot not in self._occupied and self._is_locked_now(slot):
                    self._occupied.add(slot)
                    return slot
        return None

    def release(self, slot: int) -> None:
        """Release a slot."""
        with self._lock:
            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)
            self._occupied.remove(slot)

    def _is_locked_now(self, slot: int) -> bool:
        """Lock a slot unless another process has locked it; return whether this process has the lock."""
        if self._file is None:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise LLMError(f"requests in flight cannot be counted in {shared_folder()}: {error.strerror}") from error
        return True


_file_slots_lock = threading.Lock()
_file_slots: dict[Path, _Slots] = {}
os.register_at_fork(after_in_child=_file_slots.clear)  # a child does not have the locks of its parent
