"""Lookup of runs on disk: `run:<hash>`, `latest:<name>`, `preset:<study>`, or a folder."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.run.folder import format_seed_folder, parse_config_hash, parse_seed, sanitize_path

ReferenceKind = Literal["run", "latest", "preset"]

_REFERENCE_PATTERN = re.compile(r"(run|latest|preset):(.*?)(?:/s([0-9]{1,18}))?/?")
_HASH_PREFIX_PATTERN = re.compile(r"[0-9a-f]{1,8}")
_MAX_LISTED_RUNS = 12  # runs in an error message


@dataclass(frozen=True)
class RunReference:
    """A reference to a run, as typed.

    Attributes:
        kind: `run`, `latest` or `preset`.
        target: prefix of a hash (`run`), name of runs (`latest`), or `<study>` or `<study>+<treatment>` (`preset`).
        seed: seed of the run; None if the reference has none.
    """

    kind: ReferenceKind
    target: str
    seed: int | None

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" + ("" if self.seed is None else f"/{format_seed_folder(self.seed)}")


def parse_reference(text: str) -> RunReference | None:
    """Parse a reference to a run; return None for any other text, such as a folder.

    >>> parse_reference("preset:regimes/cleanup_pretrain/s3")
    RunReference(kind='preset', target='regimes/cleanup_pretrain', seed=3)
    >>> parse_reference("outputs/demo") is None
    True

    Raises:
        ConfigError: nothing follows the colon, or `run:` is not followed by the first digits of a hash.
    """
    match = _REFERENCE_PATTERN.fullmatch(text)
    if match is None:
        return None
    kind, target, seed = match.groups()
    if not target or (kind == "run" and not _HASH_PREFIX_PATTERN.fullmatch(target)):
        raise ConfigError(
            f"{text!r} is not a reference to a run: use run:<hash>, with the first hexadecimal digits at the end of a "
            "folder <label>-<hash>, or latest:<name> or preset:<study>; /s<seed> may follow each"
        )
    return RunReference(kind, target, None if seed is None else int(seed))  # type: ignore[arg-type]


def add_output_root_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--output-root` to a command: the folder that is searched for referenced runs."""
    parser.add_argument(
        "--output-root",
        type=Path,
        default=Path("outputs"),
        metavar="FOLDER",
        help="where run:<hash> and latest:<name> are looked up (default outputs)",
    )


def resolve_run_folder(text: str | Path, root: Path) -> Path:
    """Return the run folder that `text` refers to.

    Args:
        text: reference, run folder, or folder that contains one run. `latest:<name>` without a seed is the run that was
            finished last.
        root: output folder that is searched for referenced runs.

    Raises:
        ConfigError: an invalid reference, or a preset, which only configs of runs can refer to.
        RunFolderError: no run or several runs match; the message lists them.
    """
    from llmrl.results.run_records import find_only_run

    reference = parse_reference(str(text))
    if reference is None:
        return find_only_run(Path(text))
    runs = find_experiment_runs(reference, root)
    if reference.kind == "latest" and reference.seed is None:
        return max(runs, key=read_update_time)
    return select_run(reference, runs)


def resolve_folder(text: str | Path, root: Path) -> Path:
    """Return the folder that `text` refers to.

    A reference with a seed gives a run folder, one without a seed the folder of the experiment. Other texts are paths.

    Raises:
        ConfigError, RunFolderError: see `resolve_run_folder`.
    """
    reference = parse_reference(str(text))
    if reference is None:
        return Path(text)
    return find_experiment_runs(reference, root)[0].parent if reference.seed is None else resolve_run_folder(text, root)


def find_experiment_runs(reference: RunReference, root: Path) -> list[Path]:
    """Return the runs of the experiment that a reference `run:` or `latest:` names, sorted by seed.

    If the experiment has runs under several names, one run of each seed is returned, a finished one if there is any.
    For `latest:`, only finished runs are returned.
    """
    from llmrl.results.run_records import find_runs

    if reference.kind == "preset":
        raise ConfigError(f"{reference} can only be used in options of a run; use run: or latest: here")
    if reference.kind == "latest":
        return [run for run in find_runs(find_newest_run(reference.target, root).parent) if is_finished(run)]
    runs = [run for run in find_runs(root) if (parse_config_hash(run) or "").startswith(reference.target)]
    if not runs:
        raise RunFolderError(f"there is no run in {root} whose folder's hash begins with {reference.target}")
    if len({parse_config_hash(run) for run in runs}) > 1:
        raise RunFolderError(f"{reference} may be any of {format_runs(runs)}")
    run_by_seed: dict[int | None, Path] = {}
    for run in sorted(runs, key=is_finished, reverse=True):
        run_by_seed.setdefault(parse_seed(run), run)
    return [run_by_seed[seed] for seed in sorted(run_by_seed, key=lambda seed: seed or 0)]


def select_run(reference: RunReference, runs: Sequence[Path]) -> Path:
    """Return the run with the seed of a reference; without a seed, the only run.

    Raises:
        RunFolderError: not exactly one run matches.
    """
    matches = [run for run in runs if reference.seed in (None, parse_seed(run))]
    if len(matches) == 1:
        return matches[0]
    raise RunFolderError(f"{reference} is not one run; available runs: {format_runs(matches or runs)}")


def find_newest_run(name: str, root: Path) -> Path:
    """Return the run under `name` that was finished last; raise RunFolderError if none is finished."""
    from llmrl.results.run_records import find_runs

    name_folder = root.expanduser() / sanitize_path(name)
    runs = find_runs(name_folder) if name_folder.is_dir() else []
    candidates = [run for run in runs if is_finished(run)]
    if not candidates:
        raise RunFolderError(
            f"latest:{name}: no run in {name_folder} is finished"
            + (f"; unfinished: {format_runs(runs)}" if runs else "")
        )
    return max(candidates, key=read_update_time)


def is_finished(run: Path) -> bool:
    """Return whether the run in the folder `run` is finished."""
    from llmrl.run.status import read_status

    status = read_status(run)
    return status is not None and status.state == "finished"


def read_update_time(run: Path) -> float:
    """Return the time of the last change of a run's status, Unix seconds; 0 without a status."""
    from llmrl.run.status import read_status

    status = read_status(run)
    return 0.0 if status is None else status.updated


def format_runs(runs: Sequence[Path]) -> str:
    """Format runs for an error message, one a line: reference, state and folder."""
    from llmrl.results.run_records import read_run

    lines = [
        f"\n  run:{parse_config_hash(run)}/{run.name}  {read_run(run).state}  {run}" for run in runs[:_MAX_LISTED_RUNS]
    ]
    omission_note = f"\n  and {len(runs) - _MAX_LISTED_RUNS:,} more" if len(runs) > _MAX_LISTED_RUNS else ""
    return f"{len(runs):,} runs:{''.join(lines)}{omission_note}"
