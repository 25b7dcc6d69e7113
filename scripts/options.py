"""Write the page that lists all options, `docs/options.md`, from the comments and signatures of their files.

python scripts/options.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.option_docs import (
    KeyPath,
    format_option_path,
    format_option_type,
    format_value,
    read_description,
    read_documented_keys,
    read_keys,
)
from llmrl.core.option_files import (
    find_variants,
    get_root,
    is_choosable,
    list_files,
    list_part_groups,
    list_subgroups,
    read_file,
    sets_global_keys,
)

_INTRODUCTION = """# Options

`python scripts/options.py` generates this page from the comments of `conf/` and the signatures of the classes that the
options name. `llmrl-train --explain env=cleanup` explains the options of any choices and values, and
`llmrl-train --explain design.candidates` explains one key; `llmrl-finetune --explain` does so for that command.

A section is a file, or one of the variants in a file. Keys of the files that it includes are documented in their own
sections; the section lists only the keys that it sets itself, some with a reason. Options whose names begin with `_`
are included by others and cannot be chosen.

An editor with a YAML language server checks and completes the keys of a file whose first line names the schema. This
prints that line for an experiment, and with the name of a group for an option of it:

```bash
python -m llmrl.config.option_schema          # experiment/mine.yaml
python -m llmrl.config.option_schema agent    # agent/mine.yaml
```
"""
_COMMANDS = {"_run": "both commands", "train": "llmrl-train", "finetune": "llmrl-finetune"}


def format_page() -> str:
    """Return the text of the page."""
    paragraphs = [_INTRODUCTION, "## The commands\n"]
    for name, title in _COMMANDS.items():
        paragraphs += _iterate_section(title, get_root() / f"{name}.yaml", [(get_root() / f"{name}.yaml", ())])
    for group in sorted(
        key_path for name in (*list_part_groups(), "regime") for key_path in (name, *list_subgroups(name))
    ):
        paragraphs.append(f"## {group}\n")
        folder = get_root() / group
        file_names = {path.stem for path in folder.glob("*.yaml")}
        for name in sorted(file_names | find_variants(folder).keys(), key=lambda name: (is_choosable(name), name)):
            path = folder / f"{name}.yaml"
            if read_file(path):
                paragraphs += _iterate_section(
                    f"{group}{'=' if is_choosable(name) else ' '}{name}", path, list_files(group, name)
                )
    return "\n".join(paragraphs)


def _iterate_section(title: str, path: Path, files: Sequence[tuple[Path, KeyPath]]) -> Iterable[str]:
    package = files[-1][1]
    targets: dict[str, str] = {}
    for file, key_path in files:
        targets |= _find_targets(read_file(file), key_path)
    documents = read_documented_keys(files)
    rows = []
    for entry in read_keys(path):
        key = ".".join((*package, *entry.key))
        if entry.key[0] == "hydra" or (not entry.is_leaf and not entry.comment):
            continue
        # The section of a group omits its name.
        label = key if sets_global_keys(path) else ".".join(entry.key)
        kind = "" if key.endswith("_target_") or not entry.is_leaf else format_option_type(key, targets)
        is_first_use = documents[key].meaning_location == f"{format_option_path(path)}:{entry.line}"
        value = f"`{_format_default(path, entry.key)}`" if entry.is_leaf else ""
        rows.append((f"`{label}`", value, kind if is_first_use else "", entry.comment))
    links = [
        link for base in read_file(path).get("defaults", []) if (link := _format_base_link(base, path)) is not None
    ]
    yield f"### {title}\n"
    yield f"{read_description(path)}\n"
    if links:
        yield f"Begins with {' and '.join(links)}.\n"
    if rows:
        yield "| key | value | type | meaning |\n|---|---|---|---|"
        yield from ("| " + " | ".join(_escape_cell(cell) for cell in row) + " |" for row in rows)
        yield ""


def _find_targets(node: Mapping[str, Any], key_path: KeyPath) -> dict[str, str]:
    targets = {".".join(key_path): str(node["_target_"])} if node.get("_target_") else {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            targets |= _find_targets(value, (*key_path, key))
    return targets


def _format_base_link(base: Any, path: Path) -> str | None:
    """Return a link to an included file, or None for an entry that only selects an option."""
    if not isinstance(base, str) or base == "_self_" or base.startswith(("/experiment/", "/treatment/")):
        return None
    reference, _, key_path = base.partition("@")
    if path.parent == get_root():
        return f"[{_COMMANDS[reference]}](#{_COMMANDS[reference].replace(' ', '-')})"
    group, _, name = (reference[1:] if reference.startswith("/") else f"{path.parent.name}/{reference}").partition("/")
    title = f"{group}={name}" if is_choosable(name) else f"{group} {name}"
    anchor = title.replace("=", "").replace(" ", "-")
    return f"[{title}](#{anchor})" + (f" (as `{key_path}`)" if key_path else "")


def _format_default(path: Path, key: KeyPath) -> str:
    value: Any = read_file(path)
    for part in key:
        value = next(value[name] for name in value if str(name) == part)
    return "needed" if value == "???" else format_value(value)


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;") if not text.startswith("`") else text.replace("|", "\\|")


def main() -> None:
    """Write the page."""
    (Path(__file__).parents[1] / "docs" / "options.md").write_text(format_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
