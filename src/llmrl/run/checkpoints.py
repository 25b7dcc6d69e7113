"""Checkpoints: everything that an exact resume of a run needs, in files that are written atomically and verified.

`CheckpointStore` writes and reads them; `CheckpointTimer` decides at which safe points a run saves one.

A file is the output of `torch.save`, then a footer: 8 bytes `llmrl-ck` and the SHA-256 of all bytes before the footer.
It is written under a temporary name, synced and renamed, so a file under its final name is complete unless the disk
failed. In that case the digest does not match, and the previous checkpoint is used.

Files are read with `weights_only=True`, which builds only tensors and plain data, so an untrusted checkpoint cannot run
code. NumPy arrays and scalars are stored as tagged bytes and restored with their types.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from llmrl.core.atomic_files import atomic_write, describe_write_error, remove_file_ignoring_errors
from llmrl.core.errors import CheckpointError
from llmrl.core.folder_files import create_folder, read_bytes
from llmrl.core.records import State
from llmrl.run.signals import DISCARD_WORK_S, MAX_STOP_S

log = logging.getLogger(__name__)

MAGIC = b"llmrl-ck"
_FOOTER_SIZE = len(MAGIC) + hashlib.sha256().digest_size
_FORMAT_VERSION = 8
N_KEPT_CHECKPOINTS = 2
"""Number of newest checkpoints of a run that are not deleted."""
_NUMPY_KEY = "__numpy__"
_NAME_PATTERN = re.compile(r"checkpoint_(\d{9})\.pt")


class CheckpointStore:
    """The checkpoints of one run in `folder`, of which only the `N_KEPT_CHECKPOINTS` newest are kept.

    Reading does not change files, so a run can be evaluated while it trains. With a `config_hash`, checkpoints of
    another config are refused.
    """

    def __init__(self, folder: Path, config_hash: str = "") -> None:
        self.folder, self.config_hash = folder, config_hash

    def list_paths(self) -> list[Path]:
        """Return the checkpoint files, oldest first."""
        return sorted(path for path in self.folder.glob("checkpoint_*.pt") if _NAME_PATTERN.fullmatch(path.name))

    def get_path(self, iteration: int) -> Path:
        """Return the file of an iteration's checkpoint, whether or not it exists."""
        return self.folder / f"checkpoint_{iteration:09d}.pt"

    def save(self, iteration: int, state: State) -> Path:
        """Write the checkpoint of `iteration`, remove checkpoints that are no longer kept, and return the new file.

        Raises:
            TypeError: the state has a value other than tensors, arrays and plain data; the message gives its key.
            CheckpointError: the file cannot be written (disk full, folder gone); earlier checkpoints are unchanged.
        """
        import torch

        content = {
            "format": _FORMAT_VERSION,
            "iteration": iteration,
            "config_hash": self.config_hash,
            "state": _encode(state, "state"),
        }
        path = self.get_path(iteration)
        writer = _HashingWriter()
        try:
            create_folder(self.folder, self.folder.parent)
            self.clean()
            with atomic_write(path, self.folder.parent) as file:
                writer.file = file
                torch.save(content, writer)  # type: ignore[arg-type]  # needs `write` and `flush` only
                file.write(MAGIC + writer.hash.digest())
        except (OSError, RuntimeError) as error:  # torch reports a failing write as RuntimeError
            write_error = error if isinstance(error, OSError) else writer.error
            reason = describe_write_error(path, write_error) if write_error is not None else error
            raise CheckpointError(f"cannot write {path}: {reason}") from error
        # Files of later iterations are damaged: loading skipped them, and the run resumed from an earlier checkpoint.
        for old_path in [p for p in self.list_paths() if p.name > path.name] + self.list_paths()[:-N_KEPT_CHECKPOINTS]:
            old_path.unlink(missing_ok=True)
        return path

    def load(self, path: Path) -> tuple[int, State]:
        """Return the iteration and state of one checkpoint file, with tensors on the CPU.

        Raises:
            CheckpointError: the file is missing, damaged, of another format or config, or has more than plain data.
        """
        import torch

        try:
            data = read_bytes(path, path.parent.parent)
        except OSError as error:
            raise CheckpointError(f"cannot read the checkpoint {path}: {error.strerror or error}") from error
        _check_digest(path, data)
        try:
            content = torch.load(io.BytesIO(data[:-_FOOTER_SIZE]), map_location="cpu", weights_only=True)
            version, config_hash = content["format"], content["config_hash"]
            iteration, encoded = content["iteration"], content["state"]
        except Exception as error:
            raise CheckpointError(
                f"{path} is not a checkpoint of this program: {(str(error).splitlines() or [type(error).__name__])[0]}"
            ) from error
        if version != _FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has checkpoint format {version}; this version reads {_FORMAT_VERSION}. Set "
                "rerun=true to compute the run again"
            )
        if self.config_hash and config_hash != self.config_hash:
            raise CheckpointError(
                f"{path} belongs to another configuration: it was written under config hash {config_hash or 'none'}, "
                f"this run has {self.config_hash}. Use the configuration it was written under, or start anew."
            )
        try:
            return int(iteration), _decode(encoded)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{path} is not a checkpoint of this program: {error!r}") from error

    def load_newest(self) -> tuple[int, State] | None:
        """Return iteration and state of the newest intact checkpoint; None if there is none.

        Damaged files are skipped with a warning.

        Raises:
            CheckpointError: all are damaged, or the newest intact one cannot be used (another config or format).
        """
        damaged_names: list[str] = []
        for path in reversed(self.list_paths()):
            try:
                return self.load(path)
            except DamagedCheckpointError as error:
                log.warning("%s; trying the one before it", error)
                damaged_names.append(path.name)
            except CheckpointError:
                if path.exists():
                    raise
                log.debug("%s was replaced by a newer checkpoint while it was being read", path)
        if damaged_names:
            raise CheckpointError(
                f"every checkpoint in {self.folder} is damaged ({', '.join(damaged_names)}). "
                "Start this run anew with rerun=true, which moves the old content aside."
            )
        return None

    def clean(self) -> None:
        """Remove partial and superseded files that a killed process left. Only the owner of the run may call this."""
        for leftover in [*self.folder.glob(".checkpoint_*.tmp"), *self.list_paths()[:-N_KEPT_CHECKPOINTS]]:
            remove_file_ignoring_errors(leftover)


class DamagedCheckpointError(CheckpointError):
    """A checkpoint file is cut short or does not match its digest."""


class _HashingWriter:
    """A writer that passes data on to `file` and hashes it, so that a checkpoint is in memory only once.

    Attributes:
        file: file to write to; set it before the first write.
        hash: SHA-256 of everything written so far.
        error: error of a failed write, because torch reports the failure without its cause.
    """

    file: IO[bytes]
    error: OSError | None

    def __init__(self) -> None:
        self.hash, self.error = hashlib.sha256(), None

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _check_digest(path: Path, data: bytes) -> None:
    footer = data[-_FOOTER_SIZE:]
    if len(footer) < _FOOTER_SIZE or not footer.startswith(MAGIC):
        raise DamagedCheckpointError(f"the checkpoint {path} is cut short or is not a checkpoint")
    if hashlib.sha256(memoryview(data)[:-_FOOTER_SIZE]).digest() != footer[len(MAGIC) :]:
        raise DamagedCheckpointError(f"the checkpoint {path} is damaged (its digest does not match)")


def _encode(value: Any, location: str) -> Any:
    """Return a copy for `weights_only` loading; equal values give equal bytes. `location` names `value` in errors."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            raise TypeError(f"{location} is an array of Python objects, which checkpoints do not hold")
        import torch

        return {
            _NUMPY_KEY: "array" if isinstance(value, np.ndarray) else "scalar",
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "bytes": torch.from_numpy(np.frombuffer(value.tobytes(), dtype=np.uint8).copy()),
        }
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, str):
        return sys.intern(value)  # pickle writes equal strings differently when they are different objects
    if isinstance(value, int):
        if value.bit_length() > 2000:
            raise TypeError(f"{location} is an integer of {value.bit_length()} bits; at most 2000 can be stored")
        return value
    if isinstance(value, Mapping):
        if _NUMPY_KEY in value:
            raise TypeError(f"{location} uses the reserved key {_NUMPY_KEY!r}")
        return {_encode_key(key, location): _encode(element, f"{location}.{key}") for key, element in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        elements = [_encode(element, f"{location}[{i}]") for i, element in enumerate(value)]
        return elements if isinstance(value, list) else tuple(elements)
    torch_module = sys.modules.get("torch")
    if torch_module is not None and isinstance(value, torch_module.Tensor):
        return value.detach().cpu().clone()  # cloned, because a slice would be saved with its full storage
    raise TypeError(f"{location} is a {type(value).__name__}; a state holds tensors, arrays and plain data only")


def _encode_key(key: Any, location: str) -> str | int:
    if isinstance(key, str):
        return sys.intern(key)
    if isinstance(key, int):
        return key
    raise TypeError(f"{location} has the key {key!r}; keys are strings or integers")


def _decode(value: Any) -> Any:
    """Invert `_encode`."""
    if isinstance(value, dict):
        if _NUMPY_KEY not in value:
            return {key: _decode(element) for key, element in value.items()}
        array = np.frombuffer(value["bytes"].numpy().tobytes(), dtype=np.dtype(value["dtype"]))
        array = array.reshape(value["shape"]).copy()
        return array if value[_NUMPY_KEY] == "array" else array[()]
    if isinstance(value, list):
        return [_decode(element) for element in value]
    return tuple(_decode(element) for element in value) if isinstance(value, tuple) else value


LONG_INTERVAL_S = 4.0
"""Seconds between safe points above which a run saves earlier, because a stop discards the work since the last one."""
_MAX_SAVING_FRACTION = 0.1
"""Maximum fraction of a run's time that is spent on such earlier saves."""


class CheckpointTimer:
    """Timer that decides at which safe points a run saves a checkpoint.

    Args:
        interval: seconds between saves at safe points; 0: save at every safe point.

    Attributes:
        last_duration: seconds that the last checkpoint took; 0 before the first one.
    """

    def __init__(self, interval: float = 60.0) -> None:
        self.interval = interval
        self.last_duration = 0.0
        self._next_checkpoint_seconds = 0.0  # seconds of work on the next checkpoint so far
        self._has_warned = False  # whether it was logged that a stop may take longer than `MAX_STOP_S`
        self._last_checkpoint_time = self._last_safe_point_time = time.monotonic()

    def start(self) -> None:
        """Start to measure the time to the next safe point."""
        self._last_safe_point_time = time.monotonic()

    def add(self, seconds: float) -> None:
        """Add seconds of work on the next checkpoint."""
        self._next_checkpoint_seconds += seconds

    def finish(self) -> None:
        """Mark the checkpoint as saved; warn once if a stop would have to wait too long for it."""
        self._last_checkpoint_time = time.monotonic()
        self.last_duration, self._next_checkpoint_seconds = self._next_checkpoint_seconds, 0.0
        if self.last_duration > (max_seconds := MAX_STOP_S - DISCARD_WORK_S) and not self._has_warned:
            self._has_warned = True
            log.warning(
                "a checkpoint took %.0f s, more than %g s: a stop may therefore take more than %d s (logged once)",
                self.last_duration,
                max_seconds,
                MAX_STOP_S,
            )

    def is_due(self) -> bool:
        """Return whether to save at this safe point; call it once at each.

        Saves are due `interval` after the last one. They are due earlier if safe points are more than `LONG_INTERVAL_S`
        apart, so that a stop discards less work.
        """
        now = time.monotonic()
        is_long_interval = now - self._last_safe_point_time > LONG_INTERVAL_S
        self._last_safe_point_time = now
        elapsed = now - self._last_checkpoint_time
        return elapsed >= self.interval or (is_long_interval and self.last_duration < _MAX_SAVING_FRACTION * elapsed)
