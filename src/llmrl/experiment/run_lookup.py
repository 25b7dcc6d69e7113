"""Runs on disk by reference: `run:<hash>`, `latest:<name>`, `preset:<study>`, or a folder."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.run.names import hash_of, safe_path, seed_folder, seed_of

Kind = Literal["run", "latest", "preset"]

_REFERENCE = re.compile(r"(run|latest|preset):(.*?)(?:/s([0-9]{1,18}))?/?")
_PREFIX = re.compile(r"[0-9a-f]{1,8}")
_LISTED = 12


@dataclass(frozen=True)
class Reference:
    """A reference as it was typed.

    Attributes:
        kind: `run`, `latest` or `preset`.
        what: a prefix of a hash, a name, or a study, with a treatment after a `+`.
        seed: of the run that is meant; None where the reference names none.
    """

    kind: Kind
    what: str
    seed: int | None

    def __str__(self) -> str:
        return f"{self.kind}:{self.what}" + ("" if self.seed is None else f"/{seed_folder(self.seed)}")


def parsed(text: str) -> Reference | None:
    """Return the reference that a text is; None for anything else, such as a folder.

    >>> parsed("preset:regimes/cleanup_pretrain/s3")
    Reference(kind='preset', what='regimes/cleanup_pretrain', seed=3)
    >>> parsed("outputs/demo") is None
    True

    Raises:
        ConfigError: it begins like one, and names nothing.
    """
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return None
    kind, what, seed = found.groups()
    if not what or (kind == "run" and not _PREFIX.fullmatch(what)):
        raise ConfigError(
            f"{text!r} names no run: run:<hash> takes hexadecimal digits, the end of a folder <label>-<hash>, or the "
            "first few of them; latest:<name> and preset:<study> take a name; /s<seed> may follow each"
        )
    return Reference(kind, what, None if seed is None else int(seed))  # type: ignore[arg-type]


def add_root(parser: argparse.ArgumentParser) -> None:
    """Give a command the option `--output-root`, where references that it takes are looked up."""
    parser.add_argument(
        "--output-root",
        type=Path,
        default=Path("outputs"),
        metavar="FOLDER",
        help="where run:<hash> and latest:<name> are looked up (default outputs)",
    )


def run_folder_of(text: str | Path, root: Path) -> Path:
    """Return the one run that a command is to work on: by reference, or the folder of a run, or one around it.

    Args:
        text: what was typed.
        root: of all outputs, where references are looked up.

    Raises:
        ConfigError: a reference that names no run, or a preset, which only a run can need.
        RunFolderError: there is no such run, or there are several, which are listed.
    """
    from llmrl.analysis.runs import only_run

    reference = parsed(str(text))
    if reference is None:
        return only_run(Path(text))
    runs = experiment_runs(reference, root)
    if reference.kind == "latest" and reference.seed is None:
        return max(runs, key=last_updated)
    return only_of(reference, runs)


def folder_of(text: str | Path, root: Path) -> Path:
    """Return the folder that a command about many runs is to look at: an experiment's or a run's, by reference, or any.

    Raises:
        ConfigError, RunFolderError: as `run_folder_of`.
    """
    reference = parsed(str(text))
    if reference is None:
        return Path(text)
    if reference.seed is not None:
        return run_folder_of(text, root)
    return experiment_runs(reference, root)[0].parent


def runs_of(text: str | Path, root: Path) -> list[Path]:
    """Return all runs that a folder or a reference names, seeds by number.

    Raises:
        ConfigError, RunFolderError: as `run_folder_of`.
    """
    from llmrl.analysis.runs import find_runs

    folder = folder_of(text, root)
    return find_runs(folder) or [folder]


def experiment_runs(reference: Reference, root: Path) -> list[Path]:
    """The runs of the one experiment that `run:` or `latest:` names, seeds by number; the same one under several names
    counts once."""
    from llmrl.analysis.runs import find_runs

    if reference.kind == "preset":
        raise ConfigError(f"{reference} stands for a run that another run needs; a command takes run: or latest:")
    if reference.kind == "latest":
        newest = newest_run(reference.what, root)
        return [run for run in find_runs(newest.parent) if is_finished(run)]
    runs = [run for run in find_runs(root) if (hash_of(run) or "").startswith(reference.what)]
    if not runs:
        raise RunFolderError(f"there is no run in {root} whose folder's hash begins with {reference.what}")
    if len({hash_of(run) for run in runs}) > 1:
        raise RunFolderError(f"{reference} may be any of {listing(runs)}")
    seeds: dict[int | None, Path] = {}
    for run in sorted(runs, key=is_finished, reverse=True):
        seeds.setdefault(seed_of(run), run)
    return [seeds[seed] for seed in sorted(seeds, key=lambda seed: seed or 0)]


def only_of(reference: Reference, runs: Sequence[Path]) -> Path:
    """The run of the seed that a reference names, or the only one there is."""
    wanted = [run for run in runs if reference.seed in (None, seed_of(run))]
    if len(wanted) == 1:
        return wanted[0]
    raise RunFolderError(f"{reference} is not one run, there are {listing(wanted or runs)}")


def newest_run(name: str, root: Path) -> Path:
    """The run of a name that was finished last."""
    from llmrl.analysis.runs import find_runs

    below = root.expanduser() / safe_path(name)
    runs = find_runs(below) if below.is_dir() else []
    finished = [run for run in runs if is_finished(run)]
    if not finished:
        raise RunFolderError(
            f"latest:{name}: no run in {below} is finished" + (f"; there are {listing(runs)}" if runs else "")
        )
    return max(finished, key=last_updated)


def is_finished(run: Path) -> bool:
    from llmrl.run.status import read_status

    status = read_status(run)
    return status is not None and status.state == "finished"


def last_updated(run: Path) -> float:
    from llmrl.run.status import read_status

    status = read_status(run)
    return 0.0 if status is None else status.updated


def listing(runs: Sequence[Path]) -> str:
    """Runs as an error lists them, each with the reference that means it."""
    from llmrl.analysis.runs import read_run

    lines = [f"\n  run:{hash_of(run)}/{run.name}  {read_run(run).state}  {run}" for run in runs[:_LISTED]]
    more = f"\n  and {len(runs) - _LISTED:,} more" if len(runs) > _LISTED else ""
    return f"{len(runs):,} runs:{''.join(lines)}{more}"
