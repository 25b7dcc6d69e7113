"""`provenance.json`, the origin of a run's results: code, packages, machine and command.

It has one record per attempt (each start or resumption of the run).
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import logging
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from llmrl.core.plain_data import read_json_object
from llmrl.core.secrets import redact_arguments, redact_code
from llmrl.run.files import write_atomic, write_json

log = logging.getLogger(__name__)

FILE_NAME = "provenance.json"
MAX_DIFF_CHARACTERS = 1_000_000
"""Maximum number of characters of uncommitted changes that are saved."""
RECORDED_ENVIRONMENT_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_CPUS_PER_TASK",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION",
    "SLURM_RESTART_COUNT",
)
"""Environment variables that are recorded. Others are not, because they may contain secrets such as API keys."""


def write_provenance(run_folder: Path, attempt: int) -> str:
    """Append the record of this attempt to `provenance.json`; write uncommitted changes to `code-<attempt>.diff`.

    Returns the digest of the imported code (`compute_code_digest`).
    """
    path = run_folder / FILE_NAME
    earlier_records: list[dict[str, Any]] = []
    try:
        earlier_records = list(read_json_object(path)["attempts"])
    except FileNotFoundError:
        pass
    except (ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read (%s); records of earlier attempts are lost; a new file is written", path, error)
    record = {
        "attempt": attempt,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": redact_arguments(sys.argv),
        "working_folder": str(Path.cwd()),
        "code": _save_diff_and_describe_code(run_folder / f"code-{attempt}.diff"),
        "code_digest": compute_code_digest(),
        "python": sys.version.split()[0],
        "packages": get_package_versions(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": _get_cpu_name(),
        "cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _get_memory_bytes(),
        "gpus": _list_gpu_names(),
        "environment": {name: os.environ[name] for name in RECORDED_ENVIRONMENT_VARIABLES if name in os.environ},
    }
    write_json(path, {"attempts": [*earlier_records, record]})
    return compute_code_digest()


@functools.cache
def compute_code_digest() -> str:
    """Return 16 hexadecimal digits that identify the code of this package: all its Python, prompt and Lua files.

    The files are read at the first call only, because later they may differ from the imported code.
    """
    package_folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(p for p in package_folder.rglob("*") if p.suffix in (".py", ".j2", ".lua")):
        digest.update(f"{path.relative_to(package_folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def read_checkout_state() -> tuple[str, str, str] | None:
    """Return the revision, `git status --porcelain` and `git diff HEAD` of the Git checkout that contains this package.

    They are read at the first call only. The result is None if the package is not in a checkout.
    """
    package_folder = Path(__file__).parent
    git = functools.partial(_run_git, package_folder)
    revision = git("rev-parse", "HEAD")
    if revision is None or git("ls-files", "--error-unmatch", str(package_folder / "__init__.py")) is None:
        return None
    return revision.strip(), git("status", "--porcelain") or "", git("diff", "HEAD") or ""


def _save_diff_and_describe_code(diff_path: Path) -> dict[str, Any] | None:
    """Save the diff of the checkout that contains this package; return a record of its state, or None without one."""
    if (checkout_state := read_checkout_state()) is None:
        return None
    revision, status, diff = checkout_state
    if diff := redact_code(diff):
        if len(diff) > MAX_DIFF_CHARACTERS:
            diff = diff[:MAX_DIFF_CHARACTERS] + f"\n[truncated; the full diff has {len(diff)} characters]\n"
        write_atomic(diff_path, diff)
    return {
        "revision": revision,
        "clean": not status,
        "diff": diff_path.name if diff else None,
        "untracked": [line[3:] for line in status.splitlines() if line.startswith("??")][:50],
    }


def _run_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a Git command in `folder`; None without Git, outside a checkout, or if it takes too long."""
    # Without optional locks, because a killed Git process leaves the lock of the index in the user's repository.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def get_package_versions() -> dict[str, str]:
    """Return the version of every installed package. They are read once, which takes as long as a short run."""
    metadata_list = [distribution.metadata for distribution in importlib.metadata.distributions()]
    versions = {metadata["Name"]: metadata["Version"] for metadata in metadata_list if metadata["Name"]}
    return dict(sorted(versions.items(), key=lambda item: item[0].lower()))


def _get_cpu_name() -> str:
    cpuinfo_path = Path("/proc/cpuinfo")
    lines = cpuinfo_path.read_text().splitlines() if cpuinfo_path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _get_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _list_gpu_names() -> list[str]:
    """Return the names of the NVIDIA GPUs of this machine, without initializing CUDA in this process."""
    texts = [path.read_text() for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
    names = [line.partition(":")[2].strip() for text in texts for line in text.splitlines() if "Model:" in line]
    if names or not shutil.which("nvidia-smi"):
        return names
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split("\n")[:-1]
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("nvidia-smi failed: %s", error)
        return []
