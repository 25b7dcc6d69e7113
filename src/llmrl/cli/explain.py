"""`llmrl-train --explain` and `llmrl-finetune --explain`: what the options of a choice mean, out of their comments."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from llmrl.config.option_docs import Documented

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
    from llmrl.config.option_schema import arguments, kind_of, shipped

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
    from llmrl.config.option_docs import written

    value = written(each.value) if each.leaf else ""
    if each.key.endswith("_target_"):
        return each.key, value, "", "what the options beside it are given to", each.set_in
    meaning = "; ".join([each.meaning, *(f"here: {note}" for note, _ in each.notes)])
    places = dict.fromkeys([each.place, *([] if each.set_in == "typed" else [each.set_in])])
    return each.key, value, kind if each.leaf else "", meaning, ", ".join(places)
