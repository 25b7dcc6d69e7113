"""A compiled loop that copies tiles into images; it requires a C++ compiler, and is 2 to 3 times as fast as PyTorch.

The loop is bound by memory bandwidth. Most of the gain comes from writes that bypass the caches: PyTorch reads every
line of the output before it overwrites it. Compiling takes half a second, once per user. The library is cached in
`~/.cache/llmrl` (`$XDG_CACHE_HOME/llmrl`). The compiler is `$CXX`, else `g++`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

_SOURCE = r"""
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// A tile has 8 lines of 24 bytes. A row of `cols` tiles becomes 8 lines of cols * 24 bytes.
template <class Id>
static void rows_of(const Id* ids, const uint8_t* bank, uint8_t* out, int64_t rows, int64_t cols, int64_t tiles,
                    bool stream, std::atomic<int>* wrong) {
  alignas(64) uint8_t staged[64 * 192];
  const int64_t size = cols * 192;
  for (int64_t row = 0; row < rows; ++row, ids += cols, out += size) {
    for (int64_t c = 0; c < cols; ++c)
      if (ids[c] < 0 || ids[c] >= tiles) { *wrong = 1; return; }
    uint8_t* to = stream ? staged : out;
    for (int line = 0; line < 8; ++line)
      for (int64_t c = 0; c < cols; ++c, to += 24) std::memcpy(to, bank + int64_t(ids[c]) * 192 + line * 24, 24);
#if defined(__SSE2__)
    if (stream)
      for (int64_t i = 0; i < size; i += 16)
        _mm_stream_si128((__m128i*)(out + i), _mm_load_si128((const __m128i*)(staged + i)));
#endif
  }
#if defined(__SSE2__)
  if (stream) _mm_sfence();
#endif
}

template <class Id>
static int spread(const Id* ids, const uint8_t* bank, uint8_t* out, int64_t rows, int64_t cols, int64_t tiles,
                  bool stream, int64_t threads) {
#if defined(__SSE2__)
  stream = stream && cols <= 64 && uintptr_t(out) % 16 == 0;
#else
  stream = false;
#endif
  std::atomic<int> wrong{0};
  std::vector<std::thread> others;
  for (int64_t t = threads - 1; t >= 0; --t) {
    const int64_t a = rows * t / threads, n = rows * (t + 1) / threads - a;
    auto part = [=, &wrong] { rows_of(ids + a * cols, bank, out + a * cols * 192, n, cols, tiles, stream, &wrong); };
    if (t == 0) { part(); break; }
    try { others.emplace_back(part); } catch (...) { part(); }
  }
  for (auto& each : others) each.join();
  return wrong;
}

extern "C" int expand(const void* ids, int64_t id_bytes, const uint8_t* bank, uint8_t* out, int64_t rows, int64_t cols,
                      int64_t tiles, int64_t stream, int64_t threads) {
  if (id_bytes == 2) return spread((const int16_t*)ids, bank, out, rows, cols, tiles, stream != 0, threads);
  return spread((const int32_t*)ids, bank, out, rows, cols, tiles, stream != 0, threads);
}
"""
# No flag depends on the CPU, because a home folder may be shared by machines of several kinds.
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread")

Expand = Callable[[int, int, int, int, int, int, int, int, int], int]
"""Arguments: address of the ids, bytes of an id (2 or 4), addresses of bank and output, rows, columns, tiles in the
bank, whether to bypass the caches, threads. Returns 1 if an id is not in the bank (the output is then undefined)."""


@functools.cache
def load() -> Expand | None:
    """Return the compiled loop, or None if it is not available; PyTorch does the same, more slowly."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    key = "\0".join([_SOURCE, *_FLAGS, platform.machine(), *platform.libc_ver()])
    try:
        place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmrl"
        library = place / f"pictures-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
        if not library.exists():
            if compiler is None:
                log.info("pictures are made without a compiled loop, at half the speed: there is no C++ compiler")
                return None
            place.mkdir(parents=True, exist_ok=True)
            _compile(compiler, library)
        try:
            function = ctypes.CDLL(str(library)).expand
        except (OSError, AttributeError):  # damaged, or of another system: compiled again, once
            if compiler is None:
                raise
            _compile(compiler, library)
            function = ctypes.CDLL(str(library)).expand
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        log.info("pictures are made without a compiled loop, at half the speed: %s", error)
        return None
    size, address = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [address, size, address, address, size, size, size, size, size]
    function.restype = ctypes.c_int
    return function


def _compile(compiler: str, library: Path) -> None:
    """Write the library atomically, so that processes that start together may all compile it."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        source, output = Path(folder) / "pictures.cpp", Path(folder) / "pictures.so"
        source.write_text(_SOURCE)
        command = [compiler, *_FLAGS, str(source), "-o", str(output)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"`{' '.join(command)}` failed: {result.stderr.strip()[:500]}")
        output.replace(library)
