"""The page of the documentation that lists all options (`docs/options.md`), written from their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.option_docs import Key, documented, entries, header, written
from llmrl.config.option_schema import arguments, groups, kind_of, shipped
from llmrl.core.option_files import chain, choosable, content, is_global, root

_INTRODUCTION = """# Options

This page is written by `python scripts/options.py` from the comments of `conf/` and the signatures of what they name.
The same is told for what one has chosen by `llmrl-train --explain env=cleanup` (any choices and values), and for one
key by `llmrl-train --explain design.candidates`; `llmrl-finetune --explain` does so for that command.

A section is a file. What it begins with is named there, and is documented there alone; of the keys that are set anew it
holds the value, and where it needs one a reason. Names that begin with `_` are what options are composed from, and
cannot be chosen.

An editor with a YAML language server checks and completes the keys of a file whose first line names the schema. This
prints that line for an experiment, and with the name of a group for an option of it:

```bash
python -m llmrl.config.option_schema          # experiment/mine.yaml
python -m llmrl.config.option_schema agent    # agent/mine.yaml
```
"""
_COMMANDS = {"_run": "both commands", "train": "llmrl-train", "finetune": "llmrl-finetune"}


def page() -> str:
    """Return the page."""
    schema = shipped()
    known = arguments(schema)
    told = [_INTRODUCTION, "## The commands\n"]
    for name, title in _COMMANDS.items():
        told += _section(title, root() / f"{name}.yaml", [(root() / f"{name}.yaml", ())], schema, known)
    for group in groups():
        told.append(f"## {group}\n")
        files = sorted((root() / group).glob("*.yaml"), key=lambda path: (choosable(path.stem), path.stem))
        for path in files:
            sign = "=" if choosable(path.stem) else " "
            told += _section(f"{group}{sign}{path.stem}", path, chain(group, path.stem), schema, known)
    return "\n".join(told)


def _section(
    title: str, path: Path, files: Sequence[tuple[Path, Key]], schema: Mapping[str, Any], known: Mapping[str, Any]
) -> Iterable[str]:
    package = files[-1][1]
    targets: dict[str, str] = {}
    for file, place in files:
        targets |= _targets(content(file), place)
    own = documented(files)
    rows = []
    for entry in entries(path):
        key = ".".join((*package, *entry.key))
        if entry.key[0] == "hydra" or (not entry.leaf and not entry.comment):
            continue
        # In a group's own section its name is left out.
        shown = key if is_global(path) else ".".join(entry.key)
        kind = "" if key.endswith("_target_") or not entry.leaf else kind_of(key, schema, known, targets)
        introduced = own[key].place == f"conf/{path.relative_to(root()).as_posix()}:{entry.line}"
        value = f"`{_value(path, entry.key)}`" if entry.leaf else ""
        rows.append((f"`{shown}`", value, kind if introduced else "", entry.comment))
    begun = [link for base in content(path).get("defaults", []) if (link := _base(base, path)) is not None]
    yield f"### {title}\n"
    yield f"{header(path)}\n"
    if begun:
        yield f"Begins with {' and '.join(begun)}.\n"
    if rows:
        yield "| key | value | type | meaning |\n|---|---|---|---|"
        yield from ("| " + " | ".join(_cell(each) for each in row) + " |" for row in rows)
        yield ""


def _targets(node: Mapping[str, Any], place: Key) -> dict[str, str]:
    found = {".".join(place): str(node["_target_"])} if node.get("_target_") else {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            found |= _targets(value, (*place, key))
    return found


def _base(base: Any, path: Path) -> str | None:
    """A link to what a file begins with; None for what it only chooses."""
    if not isinstance(base, str) or base == "_self_" or base.startswith("/experiment/"):
        return None
    where, _, place = base.partition("@")
    if path.parent == root():
        return f"[{_COMMANDS[where]}](#{_COMMANDS[where].replace(' ', '-')})"
    group, _, name = (where[1:] if where.startswith("/") else f"{path.parent.name}/{where}").partition("/")
    title = f"{group}={name}" if choosable(name) else f"{group} {name}"
    anchor = title.replace("=", "").replace(" ", "-")
    return f"[{title}](#{anchor})" + (f" (as `{place}`)" if place else "")


def _value(path: Path, key: Key) -> str:
    value: Any = content(path)
    for part in key:
        value = next(value[each] for each in value if str(each) == part)
    return "needed" if value == "???" else written(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;") if not text.startswith("`") else text.replace("|", "\\|")
