"""Collect the public names: option keys, metric names and keys of `summary.json`.

tests/test_public_names.py compares them with `tests/public_names.json`, so that changes of names are detected. After an
intended change, list it in docs/changes_*.md and run python scripts/public_names.py.
"""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llmrl.core.option_files import get_root, list_paths, read_file

ROOT = Path(__file__).parents[1]
SNAPSHOT = ROOT / "tests" / "public_names.json"
RUNS = {
    "design": ["env=escape_room", "agent=ppo", "principal=ucb"],
    "learn": ["env=cartpole", "agent=ppo"],
    "play": ["env=cartpole", "agent=random"],
    "search": ["env=cartpole", "agent=linear", "principal=random"],
}
"""Overrides of a short run without language models, by loop of llmrl-train."""
_METRIC = re.compile(r"[a-z]+/[a-z_{}]+(/[a-z_{}]+)*")
_NOT_METRICS = {"text", "image", "application", "outputs", "preset", "tests", "profile", "episodes", "trajectories"}


def read_option_keys() -> list[str]:
    """Return the keys of all options, `<group>/<option>: <dotted key>`."""
    conf = get_root()
    return sorted(
        f"{path.relative_to(conf).with_suffix('').as_posix()}: {key}"
        for path in list_paths()
        for key in _iterate_keys(read_file(path), "")
    )


def _iterate_keys(node: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, child in node.items():
        if key == "defaults":
            continue
        yield f"{prefix}{key}"
        if isinstance(child, Mapping):
            yield from _iterate_keys(child, f"{prefix}{key}.")


def read_metric_names() -> list[str]:
    """Return the metric names in the sources, with `{}` for computed parts."""
    names = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
                text = "".join(parts)
            else:
                continue
            if _METRIC.fullmatch(text) and text.partition("/")[0] not in _NOT_METRICS:
                names.add(text)
    return sorted(names)


def read_summary_keys() -> dict[str, list[str]]:
    """Run a short experiment with each loop, and return the keys of `summary.json` by loop."""
    from llmrl import train

    keys = {}
    with tempfile.TemporaryDirectory() as folder:
        for loop, overrides in RUNS.items():
            train(*overrides, "llm=none", "+debug=quick", "loggers=[jsonl]", f"name={loop}", f"output_root={folder}")
            [path] = Path(folder, loop).rglob("summary.json")
            keys[loop] = sorted(json.loads(path.read_text(encoding="utf-8")))
    return keys


def collect() -> dict[str, Any]:
    """Return all public names in the format of the snapshot."""
    return {"options": read_option_keys(), "metrics": read_metric_names(), "summary": read_summary_keys()}


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(collect(), indent=1) + "\n", encoding="utf-8")
