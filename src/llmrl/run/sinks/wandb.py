"""Weights & Biases: a run on its server, or in files of the run folder that `wandb sync` sends there later."""

from __future__ import annotations

import html
import netrc
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveFloat
from llmrl.run.sinks.sink import FOLDER, Ending, Opening, Row, Sink, flat, need

_SERVER = "https://api.wandb.ai"
_ROWS = "llmrl/rows"
"""Entry of a run's summary: how many of its rows it has."""


class WandB(Sink):
    """Metrics, config, texts and videos of a run for Weights & Biases.

    Each metric has the counter of its rows as its axis. Runs that differ in their seed alone are a group. Neither the
    command line, code, Git's remote, installed packages nor the machine's name are sent: they are in the run folder.

    Resuming, online: it goes on in the same run, and leaves out what that has. Weights & Biases forgets nothing, so
    rows that were logged after the checkpoint stay as they were told first. Offline: the files are written anew from
    the rows that are kept, in place of those of earlier attempts.

    Args:
        mode: `online`, or `offline`: files in `<run>/loggers/wandb`.
        project: None: the name of the experiment here.
        entity: user or team; None: the key's owner.
        finish_timeout: seconds that the end waits for what is not sent yet; it stays in the run folder.
        system_metrics: also let it measure processors, memory and GPUs.

    Raises:
        ConfigError: the library is not installed, or `online` and there is no key.
    """

    def __init__(
        self,
        mode: Literal["online", "offline"] = "online",
        project: str | None = None,
        entity: str | None = None,
        finish_timeout: PositiveFloat = 8.0,
        system_metrics: bool = False,
    ) -> None:
        need("wandb", "wandb", "loggers")
        if mode == "online" and not _has_key():
            raise ConfigError(
                "loggers.wandb finds no key: put one into the environment variable WANDB_API_KEY, call `wandb login`, "
                "or keep the run here with loggers.wandb.mode=offline"
            )
        self._mode, self._project, self._entity = mode, project, entity
        self._finish_timeout, self._system_metrics = finish_timeout, system_metrics

    def open(self, opening: Opening) -> None:
        folder = opening.own_folder("wandb")
        # Read by its service when that starts: nothing is to go to the home directory, or be said on the terminal.
        for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
            os.environ.setdefault(name, str(folder))
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        offline = self._mode == "offline"
        if offline:
            for earlier in folder.glob("offline-run-*"):
                shutil.rmtree(earlier)
        settings = wandb.Settings(
            mode=self._mode,
            root_dir=str(opening.folder / FOLDER),
            silent=True,
            console="off",
            symlink=False,
            save_code=False,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            host="",
            init_timeout=20.0,
            finish_timeout=self._finish_timeout,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=not self._system_metrics,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=_allowed(self._project or opening.name),
            entity=self._entity,
            id=opening.run_id(),
            name=opening.label,
            group=opening.label.rpartition("/")[0] or None,
            config={**flat(opening.config), **opening.hyperparameters},
            resume=None if offline else "allow",
            reinit="create_new",
            settings=settings,
        )
        self._had = 0 if offline else int(self._run.summary.get(_ROWS) or 0)
        self._axes: set[str] = set()

    def rows(self, rows: Sequence[Row]) -> None:
        new = [row for row in rows if row.number >= self._had]
        for row in new:
            self._log(row, dict(row.metrics), dict(row.counters))
        if new:
            self._run.summary[_ROWS] = new[-1].number + 1

    def text(self, row: Row, tag: str, markdown: str) -> None:
        import wandb

        if row.number >= self._had:
            shown = f"<pre style='white-space: pre-wrap'>{html.escape(markdown)}</pre>"
            self._log(row, {tag: wandb.Html(shown, inject=False)}, {row.x: row.place})

    def picture(self, row: Row, tag: str, path: Path) -> None:
        import wandb

        if row.number >= self._had:
            form: Any = path.suffix.lstrip(".")
            media = wandb.Image(str(path)) if form == "png" else wandb.Video(str(path), format=form)
            self._log(row, {tag: media}, {row.x: row.place})

    def close(self, ending: Ending) -> None:
        found = {key: value for key, value in flat(ending.summary).items() if isinstance(value, int | float | str)}
        self._run.summary.update({**found, **ending.final, "state": ending.state})
        if ending.error:
            self._run.summary["error"] = ending.error
        self._run.finish(exit_code=0 if ending.succeeded else 1)

    def abandon(self) -> None:
        """End the library's own process, which the end of this one would wait for while it tries to reach a server."""
        from wandb.sdk import wandb_setup

        with suppress(AttributeError):  # what is not there yet, or not any more
            connection: Any = wandb_setup.singleton()._connection
            connection._cleanup()
            connection._proc._process.kill()

    def _log(self, row: Row, values: dict[str, Any], counters: dict[str, int]) -> None:
        for name in counters.keys() - self._axes:
            self._run.define_metric(name, hidden=True)
        for tag in values.keys() - self._axes:
            self._run.define_metric(tag, step_metric=row.x)
        self._axes |= {*values, *counters}
        self._run.log({**counters, **values})


def _has_key() -> bool:
    """Whether there is a key, in the environment or in the file that `wandb login` writes."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    host = urlparse(os.environ.get("WANDB_BASE_URL") or _SERVER).hostname or ""
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _allowed(name: str) -> str:
    """A project's name without the signs that Weights & Biases refuses."""
    return re.sub(r"[/\\#?%:]", "-", name)[:128]
