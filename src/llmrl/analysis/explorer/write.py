"""Files of the explorer: a page, a script, a style sheet, libraries, and data files that are loaded on demand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from llmrl.analysis.explorer.episodes import read_episode_rows, read_episodes, write_picture_sheets
from llmrl.analysis.explorer.timeline import CONVERSATIONS_PER_FILE, iterate_conversation_chunks, read_timeline
from llmrl.core.atomic_files import describe_write_error
from llmrl.core.errors import CheckpointError, DamagedFileError, RunFolderError
from llmrl.results.run_records import RunRecord, read_runs
from llmrl.run.artifacts import read_config
from llmrl.run.files import check_no_links, path_inside, write_atomic, write_bytes, write_json_script

log = logging.getLogger(__name__)

FOLDER_NAME, PAGE_FILE_NAME = "explorer", "index.html"
SCRIPT_FUNCTION = "llmrlTake"
"""JavaScript function that each data file calls with its content."""
SCRIPT_NAMES = ("base", "conversation", "table", "runs", "episodes", "episode", "timeline", "main")
"""Source files of the script in the order of concatenation. Browsers load no JavaScript modules from `file://` URLs."""
VENDORED_FILES = ("d3.min.js", "plot.umd.min.js", "NOTICE")


def write_explorer(
    folder: Path, out: Path | None = None, on_progress: Callable[[str], None] = lambda text: None
) -> Path:
    """Write the explorer of all runs in `folder`; return the path of its page, which browsers open without a server.

    Existing files are replaced one by one, the page last. Data of a run that cannot be read are omitted, with the
    reason in the list of runs.

    Args:
        folder: folder of runs.
        out: folder of the explorer; None: `<folder>/explorer`.
        on_progress: function that is called with progress messages.

    Raises:
        RunFolderError: there is no run, or the files cannot be written.
    """
    records = read_runs(folder)
    if not records:
        raise RunFolderError(f"{folder} has no run; give a folder of runs, such as outputs or outputs/<name>")
    if out is None:
        out = path_inside(folder, FOLDER_NAME)
        check_no_links(out)
    web_files = files("llmrl.analysis.explorer") / "web"
    try:
        (out / "data").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"cannot write the explorer {out}: {describe_write_error(out, error, '--out')}") from error
    summaries = []
    for i, record in enumerate(records):
        on_progress(f"explorer, run {i + 1:,} of {len(records):,}")
        summaries.append(_write_run(f"r{i}", record, out / "data", on_progress))
    write_json_script(out / "data" / "index.js", SCRIPT_FUNCTION, "index", {"folder": folder.name, "runs": summaries})
    for name in VENDORED_FILES:
        write_bytes(out / name, (web_files / "vendor" / name).read_bytes())
    program = "\n".join((web_files / f"{part}.js").read_text(encoding="utf-8") for part in SCRIPT_NAMES)
    write_atomic(out / "app.js", f'"use strict";\n(() => {{\n{program}\n}})();\n')
    for name in ("app.css", PAGE_FILE_NAME):
        write_atomic(out / name, (web_files / name).read_text(encoding="utf-8"))
    return out / PAGE_FILE_NAME


def _write_run(key: str, record: RunRecord, data_folder: Path, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Write the files of a run into `<data_folder>/<key>`; return its summary for the list of runs."""
    config = _read_config_or_empty(record)
    summary: dict[str, Any] = {
        "key": key,
        "label": f"{record.name}/{record.group}/s{record.seed}",
        "short": f"{record.name}/{record.group}",
        "seed": record.seed,
        "env": record.env or str(record.overrides.get("env", "")),
        "agent": _find_option(record, config, "agent"),
        "principal": _find_option(record, config, "principal"),
        "llm": record.llm,
        "state": record.state,
        "result": record.result,
        "error": record.error,
        "problems": [],
    }
    explorer_folder = data_folder / key
    explorer_folder.mkdir(exist_ok=True)
    content: dict[str, Any] = {"key": key, "episodes": [], "proposals": [], "welfare": {}, "behavior": {}}
    for content_name, write in (("episodes", _write_episodes), ("proposals", _write_timeline)):
        try:
            content |= write(key, record.folder, explorer_folder, on_progress)
        except (DamagedFileError, CheckpointError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s: its %s cannot be read and are left out: %s", record.folder, content_name, error)
            summary["problems"].append(f"its {content_name} cannot be read: {error}")
    write_json_script(explorer_folder / "run.js", SCRIPT_FUNCTION, key, content)
    return summary | {"episodes": len(content["episodes"]), "proposals": len(content["proposals"])}


def _write_episodes(key: str, folder: Path, out: Path, on_progress: Callable[[str], None]) -> dict[str, Any]:
    rows = read_episode_rows(folder)
    for episode in read_episodes(folder):
        number = episode["episode"]
        on_progress(f"explorer, {folder.name}, episode {number:,}")
        content = episode | {"frames": write_picture_sheets(folder, number, out, f"e{number}")}
        write_json_script(out / f"e{number}.js", SCRIPT_FUNCTION, f"{key}/e{number}", content)
    return {"episodes": rows}


def _write_timeline(key: str, folder: Path, out: Path, on_progress: Callable[[str], None]) -> dict[str, Any]:
    timeline, conversations = read_timeline(folder)
    for i, chunk in enumerate(iterate_conversation_chunks(conversations)):
        write_json_script(out / f"t{i}.js", SCRIPT_FUNCTION, f"{key}/t{i}", chunk)
    return timeline | {"chunk": CONVERSATIONS_PER_FILE}


def _read_config_or_empty(record: RunRecord) -> Mapping[str, Any]:
    try:
        return read_config(record.folder, [])
    except RunFolderError:
        return {}  # e.g. because the run has not started


def _find_option(record: RunRecord, config: Mapping[str, Any], part: str) -> str:
    """Return the option that was chosen for a part by an override; without an override, the class name of the part."""
    if part in record.overrides:
        return str(record.overrides[part])
    section = config.get(part)
    target = str(section.get("_target_") or "") if isinstance(section, Mapping) else ""
    return target.rpartition(".")[2]
