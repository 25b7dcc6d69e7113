"""Cache on disk for functions that Numba compiles.

Functions are cached in a folder named by a digest of everything on which they depend. Numba itself checks only the file
of the outermost function, and would use outdated code after a change of a function that it calls.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmrl.core.threads import hold_process_lock

log = logging.getLogger(__name__)

JIT_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""Options of all compiled functions; they allocate no memory, so Numba's reference counting (`_nrt`) is turned off."""


@functools.cache
def get_cache_folder(name: str, files: tuple[Path, ...]) -> Path:
    """Return the folder for compiled functions, in `$XDG_CACHE_HOME/llmrl` or, if that is not set, `~/.cache/llmrl`.

    Args:
        name: prefix of the folder's name; a digest of the files, Numba and the CPU follows.
        files: source files of the functions.
    """
    import llvmlite
    import numba
    from llvmlite import binding

    parts = [numba.__version__, llvmlite.__version__, numba.config.CPU_NAME or "", platform.machine()]
    parts += [binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()]
    parts += [f"{file.name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in sorted(files)]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmrl" / f"{name}-{digest}"


@contextlib.contextmanager
def use_numba_cache(folder: Path) -> Iterator[bool]:
    """Return a context in which Numba caches compiled functions in `folder`; it yields whether that is writable."""
    import numba

    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError as error:
        log.info("compiled functions cannot be cached for the next run: %s", error)
        yield False
        return
    with hold_process_lock():
        previous_folder = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)
        try:
            yield True
        finally:
            numba.config.CACHE_DIR = previous_folder


def compile_for_types(function: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """Return a Numba function compiled for the types of `arguments` only.

    Its calls skip Numba's dispatch, which determines the types of all arguments, and raise TypeError for other types.
    """
    return function.compile(tuple(map(get_numba_type, arguments)))


def get_numba_type(value: Any) -> Any:
    """Return the Numba type of an array, of a number, or of a tuple of them.

    Read-only arrays get the type of writable ones, so that a function is not compiled a second time.
    """
    from numba import typeof, types

    if isinstance(value, tuple):
        return types.BaseTuple.from_types([get_numba_type(element) for element in value], type(value))
    array_type = typeof(value)
    return types.Array(array_type.dtype, array_type.ndim, "C") if isinstance(array_type, types.Array) else array_type
