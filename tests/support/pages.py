"""Extraction and execution of commands and code in documentation pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import commands

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def find_code_blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a language in the text of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def list_command_lines(text: str) -> list[str]:
    """Return the commands of the bash blocks of a page, without comments and with continued lines joined."""
    lines = [line for block in find_code_blocks(text.replace("\\\n", " "), "bash") for line in block.splitlines()]
    return [command for line in lines if (command := line.split("  #")[0].strip())]


def split_sections(text: str) -> dict[str, str]:
    """Return the text of each section of a page by its title."""
    _, *parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def load_agent_program() -> str:
    """Return the documented program that runs exported agents."""
    page = (ROOT / "docs" / "with_other_tools.md").read_text()
    [program] = find_code_blocks(split_sections(page)["Agents"], "python")
    return program


def run_command(command: list[str] | str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a console script (list) or a line of bash (string) without API keys of providers."""
    env = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY")}
    env["PATH"] = f"{BIN}{os.pathsep}{env['PATH']}"
    options = {"cwd": cwd, "env": env, "capture_output": True, "text": True, "timeout": 300}
    if isinstance(command, str):
        return subprocess.run(command, shell=True, executable="/bin/bash", **options)
    return commands.run([BIN / command[0], *command[1:]], **options)
