"""Python environments for packages that conflict with the installed ones or that only few tests need."""

import site
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RAY = "ray==2.60.0"
"""Requirement of environments with Ray."""


def make_environment(folder: Path, *packages: str) -> Path:
    """Create an environment with `packages` (arguments of pip install) in addition to the packages of this one.

    Returns:
        Path of its interpreter.
    """
    subprocess.run([sys.executable, "-m", "uv", "venv", "-q", "--python", sys.executable, folder], check=True)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    (site_packages / "zz_base.pth").write_text("\n".join([str(ROOT / "src"), *site.getsitepackages()]))
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(python)]
    subprocess.run([*install, *packages], check=True)
    return python
