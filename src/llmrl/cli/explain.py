"""`llmrl-train --explain` and `llmrl-finetune --explain`: what the options of a choice mean, out of their comments."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.option_docs import Documented

FLAG = "--explain"

COLUMNS = ("key", "value", "type", "meaning", "file")


def explain(primary: str, arguments: Sequence[str]) -> None:
    """Print what the options mean that `arguments` choose (`env=cleanup`) or name (`design.candidates`); all of them if
    they do neither.

    Args:
        primary: config that the command composes, `train` or `finetune`.
        arguments: of the command line, without `--explain`.

    Raises:
        ConfigError: no such option or key, or a sweep of several values.
    """
    from hydra.errors import HydraException

    from llmrl.config.option_docs import composed
    from llmrl.config.suggestions import folders, hint
    from llmrl.core.errors import ConfigError

    typed = [each for each in arguments if "=" in each and not each.startswith("-")]
    keys = [each for each in arguments if "=" not in each and not each.startswith("-") and not Path(each).is_dir()]
    try:
        documents = composed(primary, typed, folders(arguments))
    except HydraException as error:
        raise ConfigError(hint(arguments, primary) or " ".join(str(error).split())) from error
    if not keys:
        chosen = [each.partition("=")[0].lstrip("+").partition("@")[0] for each in typed]
        keys = [key for key in chosen if key != "experiment"]
    found = [each for each in documents.values() if not keys or any(_within(each.key, key) for key in keys)]
    if missing := [key for key in keys if not any(_within(each.key, key) for each in found)]:
        raise ConfigError(unknown(missing[0], documents))
    targets = {key.removesuffix("._target_"): str(each.value) for key, each in documents.items() if "_target_" in key}
    _print([each for each in found if each.leaf or each.meaning], targets)


def _within(key: str, wanted: str) -> bool:
    return key == wanted or key.startswith(f"{wanted}.")


def unknown(key: str, documents: Iterable[str]) -> str:
    """Return a sentence about a key that no option has."""
    import difflib

    known = list(documents)
    same = [each for each in known if each.rpartition(".")[2] == key.rpartition(".")[2]]
    close = same or difflib.get_close_matches(key, known, n=3)
    return f"there is no option {key!r}" + (f"; did you mean {' or '.join(close)}?" if close else "")


def _print(documents: Sequence[Documented], targets: Mapping[str, str]) -> None:
    from llmrl.config.option_schema import arguments, shipped

    schema = shipped()
    known = arguments(schema)
    rows = [_row(each, kind_of(each.key, schema, known, targets)) for each in documents]
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(row))
        return
    from rich.table import Table

    from llmrl.display.console import terminal

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, ratio in zip(COLUMNS, (3, 2, 2, 6, 3), strict=True):
        table.add_column(name, ratio=ratio, overflow="fold")
    for row in rows:
        table.add_row(*row)
    terminal().print(table, markup=False)


def _row(each: Documented, kind: str) -> tuple[str, ...]:
    value = written(each.value) if each.leaf else ""
    if each.key.endswith("_target_"):
        return each.key, value, "", "what the options beside it are given to", each.set_in
    meaning = "; ".join([each.meaning, *(f"here: {note}" for note, _ in each.notes)])
    places = dict.fromkeys([each.place, *([] if each.set_in == "typed" else [each.set_in])])
    return each.key, value, kind if each.leaf else "", meaning, ", ".join(places)


def written(value: Any) -> str:
    """Return a value as it is typed.

    >>> written(None), written([1, "a"]), written(1e-05), written(True)
    ('null', '[1, a]', '1e-05', 'true')
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(written(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(each)}" for key, each in value.items()) + "}"
    return str(value)


def kind_of(key: str, schema: Mapping[str, Any], arguments: Mapping[str, Any], targets: Mapping[str, str]) -> str:
    """Return type and range of a key by the shipped schema, e.g. `integer >= 1 | null`; empty where it says nothing.

    Args:
        key: with dots.
        schema: the shipped one.
        arguments: of every `_target_` that it knows.
        targets: the `_target_` of each place that has one.
    """
    place, _, name = key.rpartition(".")
    node = arguments.get(targets.get(place, ""), {}).get(name) or _by_place(key, schema)
    return " | ".join(dict.fromkeys(word for arm in node.get("anyOf", [node]) if (word := _word(arm))))


def _by_place(key: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a schema says of a key by its place alone."""
    node: Mapping[str, Any] = schema
    for part in key.split("."):
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        arms = [node, *node.get("anyOf", [])]
        node = next(
            (a.get("else", a)["properties"][part] for a in arms if part in a.get("else", a).get("properties", {})), {}
        )
    return node


_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _word(arm: Mapping[str, Any]) -> str:
    if "pattern" in arm:  # a reference to another value
        return ""
    if "const" in arm or "enum" in arm:
        return " | ".join(str(each) for each in arm.get("enum", [arm.get("const")]))
    kind = arm.get("type", "")
    if kind == "array":
        items = arm.get("items", {})
        inner = " | ".join(filter(None, (_word(each) for each in items.get("anyOf", [items])))) if items else ""
        return f"list of {inner}" if inner else "list"
    limits = " and ".join(f"{sign} {arm[name]:g}" for name, sign in _LIMITS.items() if name in arm)
    return " ".join(filter(None, [str(kind) if isinstance(kind, str) else "part", limits]))
