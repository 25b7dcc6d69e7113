"""A disk without room, in this process and for real: the kernel refuses to let a file grow."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Within the block, writing beyond `size` bytes of any file ends with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Without that the signal would end the process.
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
