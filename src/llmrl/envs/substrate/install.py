"""Installation and import of the Melting Pot engine, without 2.5 GB of files that substrates do not use.

All workarounds for dm-meltingpot and dmlab2d are in this file (docs/melting_pot.md gives the reasons):

* The build of dm-meltingpot downloads trained bots, unless the temporary folder contains their archive. Here it
  contains an empty archive.
* Declared requirements of dm-meltingpot include TensorFlow and JAX, which substrates do not need and which are omitted.
* `meltingpot/__init__.py` imports TensorFlow. An empty module with the same path replaces it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.core.errors import EngineError, LlmrlError

logger = logging.getLogger(__name__)

MELTINGPOT_REQUIREMENT = "dm-meltingpot==2.4.1"
DMLAB2D_REQUIREMENT = "dmlab2d==1.0.2"
ASSETS_ARCHIVE_NAME = "meltingpot-assets-2.3.0.tar.gz"
PYTHON_VERSIONS = ((3, 11), (3, 12), (3, 13))
MIN_GLIBC_VERSION = (2, 35)
INSTALL_HINT = "run `llmrl-install-meltingpot`"
_UNAFFECTED_NOTE = (
    "Everything that does not play cleanup or harvest on this engine works without it, e.g. `env=escape_room`."
)

REQUIREMENT_BY_IMPORT_NAME = {
    "dmlab2d": DMLAB2D_REQUIREMENT,
    "absl": "absl-py",
    "dm_env": "dm-env",
    "tree": "dm-tree",
    "immutabledict": "immutabledict",
    "ml_collections": "ml_collections",
    "reactivex": "reactivex",
    "wrapt": "wrapt",
}
"""Import name -> pip requirement. dm-meltingpot itself is installed after them, without its own requirements."""


def find_incompatibility() -> str | None:
    """Return the reason why the engine cannot run on this machine; None if it can."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in {"x86_64", "AMD64"}:
        return f"dmlab2d has wheels for Linux on x86-64 only; this is {system} on {machine}"
    if sys.version_info[:2] not in PYTHON_VERSIONS:
        return f"dmlab2d has wheels for Python 3.11, 3.12 and 3.13; this is Python {platform.python_version()}"
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(int(n) for n in version.split(".")[:2]) < MIN_GLIBC_VERSION:
        found_library = f"{library or 'another C library'} {version}".strip()
        return (
            f"dmlab2d needs glibc 2.35 or newer (Ubuntu 22.04, Debian 12), and this machine has {found_library}; use a "
            "container"
        )
    return None


def list_missing_requirements() -> list[str]:
    """Return the pip requirements of missing packages: the engine and its requirements."""
    requirements = {**REQUIREMENT_BY_IMPORT_NAME, "meltingpot": MELTINGPOT_REQUIREMENT}
    return [requirement for name, requirement in requirements.items() if importlib.util.find_spec(name) is None]


def is_available() -> bool:
    """Return whether the engine is installed on a supported machine, with its maps and images."""
    return not (find_incompatibility() or list_missing_requirements())


def check_installed() -> None:
    """Raise EngineError if the engine cannot be started, with the cause and a remedy."""
    reason = find_incompatibility()
    if reason is not None:
        raise EngineError(f"Melting Pot cannot run here: {reason}. {_UNAFFECTED_NOTE}")
    if missing_requirements := list_missing_requirements():
        names = ", ".join(missing_requirements)
        raise EngineError(f"Melting Pot is not installed ({names} missing): {INSTALL_HINT}. {_UNAFFECTED_NOTE}")


def import_substrate(module_name: str) -> tuple[Any, Any]:
    """Return the `dmlab2d` module and a substrate's configuration module, and do not import TensorFlow or JAX.

    Raises:
        EngineError: the engine is not installed or cannot be imported.
    """
    check_installed()
    if "meltingpot" not in sys.modules:
        spec = importlib.util.find_spec("meltingpot")
        assert spec is not None and spec.submodule_search_locations is not None
        package = types.ModuleType("meltingpot")
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = spec
        sys.modules["meltingpot"] = package
    try:
        dmlab2d = importlib.import_module("dmlab2d")
        return dmlab2d, importlib.import_module(f"meltingpot.configs.substrates.{module_name}")
    except ImportError as error:
        raise EngineError(
            f"Melting Pot is installed but cannot be imported ({error}): {INSTALL_HINT}. {_UNAFFECTED_NOTE}"
        ) from error


def find_package_parent() -> Path:
    """Return the folder that contains the package `meltingpot`; the engine looks for Lua modules there."""
    return Path(sys.modules["meltingpot"].__path__[0]).parent


def install(constraint: Path | None = None) -> bool:
    """Install the missing packages into this interpreter's environment; return whether any were missing.

    Raises:
        EngineError: the machine is not supported, pip failed, or the result cannot be imported.
    """
    reason = find_incompatibility()
    if reason is not None:
        raise EngineError(f"Melting Pot cannot be installed here: {reason}. {_UNAFFECTED_NOTE}")
    missing_requirements = list_missing_requirements()
    dependencies = [requirement for requirement in missing_requirements if requirement != MELTINGPOT_REQUIREMENT]
    if dependencies:
        _run_pip_install(dependencies, constraint)
    if MELTINGPOT_REQUIREMENT in missing_requirements:
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(Path(folder) / ASSETS_ARCHIVE_NAME, "w:gz") as archive:
                folder_member = tarfile.TarInfo("assets")
                folder_member.type, folder_member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(folder_member)
            # This build lacks the bots, so it must not be stored in pip's cache, which other environments use.
            _run_pip_install(["--no-deps", "--no-cache-dir", MELTINGPOT_REQUIREMENT], constraint, TMPDIR=folder)
    importlib.invalidate_caches()
    _verify_import()
    return bool(missing_requirements)


def _run_pip_install(arguments: Sequence[str], constraint: Path | None, **variables: str) -> None:
    """Run `pip install` (with uv if there is no pip) with some arguments and additional environment variables."""
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "install", *arguments]
    elif (uv := os.environ.get("UV") or shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--python", sys.executable, *arguments]
    else:
        raise EngineError(
            "this environment has no pip, and no uv is on the path; "
            f"`{sys.executable} -m ensurepip` adds pip. {_UNAFFECTED_NOTE}"
        )
    if constraint is not None:
        command += ["--constraint", str(constraint)]
    logger.info("%s", " ".join(command))
    if subprocess.run(command, env={**os.environ, **variables}, check=False).returncode != 0:
        raise EngineError(f"`{' '.join(command)}` failed; the cause is in its output above. {_UNAFFECTED_NOTE}")


def _verify_import() -> None:
    """Import the engine in a separate process, so that a broken library cannot crash this one."""
    module, function = import_substrate.__module__, import_substrate.__name__
    program = f"from {module} import {function}; [{function}(s) for s in ('clean_up', 'commons_harvest__open')]"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        reason = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise EngineError(f"Melting Pot was installed but does not load: {reason}. {_UNAFFECTED_NOTE}")


def main(argv: Sequence[str] | None = None) -> int:
    """Install the Melting Pot engine; do nothing, without network access, if it is already installed."""
    parser = argparse.ArgumentParser(prog="llmrl-install-meltingpot", description=main.__doc__)
    parser.add_argument(
        "--constraint", type=Path, metavar="FILE", help="pip constraints file, e.g. the project's lock file"
    )
    parser.add_argument(
        "--optional", action="store_true", help="on a machine that the engine does not support, only warn and exit 0"
    )
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    if arguments.optional and (reason := find_incompatibility()):
        logger.warning("Melting Pot is not installed: %s. %s", reason, _UNAFFECTED_NOTE)
        return 0
    try:
        was_incomplete = install(arguments.constraint)
    except LlmrlError as error:
        logger.error("%s", error)
        return 1
    version = importlib.metadata.version("dm-meltingpot")
    logger.info("Melting Pot %s is %s and loads.", version, "installed" if was_incomplete else "already installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
