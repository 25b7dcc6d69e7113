"""A sink for Weights & Biases: a run on its server, or files in the run folder that `wandb sync` sends later."""

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
from llmrl.run.sink import FOLDER, Ending, Opening, Row, Sink, flatten_config, require_library

_SERVER_URL = "https://api.wandb.ai"
_N_ROWS_KEY = "llmrl/rows"
"""Key of the number of stored rows in the summary of a run at Weights & Biases."""


class WandB(Sink):
    """A sink that sends metrics, config, texts and videos of a run to Weights & Biases.

    The x axis of each metric is the counter of its rows. Runs that differ only in their seeds form a group. The command
    line, code, Git remote, installed packages and the machine's name are not sent; they are in the run folder.

    Resuming, online: the sink continues the same run and skips the rows that it has. Weights & Biases deletes no
    rows, so rows that were logged after the checkpoint keep their first values. Offline: new files with the rows before
    the checkpoint replace those of earlier attempts.

    Args:
        mode: `online`, or `offline`: files in `<run>/loggers/wandb`.
        project: name of the project; None: the value of the option `name`.
        entity: user or team that has the project; None: the default of the API key's user.
        finish_timeout: maximum seconds to wait for unsent rows at the end of a run; the rest stays in the run folder.
        system_metrics: whether the library also records the use of processors, memory and GPUs.

    Raises:
        ConfigError: the library is not installed, or `online` finds no API key.
    """

    def __init__(
        self,
        mode: Literal["online", "offline"] = "online",
        project: str | None = None,
        entity: str | None = None,
        finish_timeout: PositiveFloat = 8.0,
        system_metrics: bool = False,
    ) -> None:
        require_library("wandb", "wandb", "loggers")
        if mode == "online" and not _has_api_key():
            raise ConfigError(
                "loggers=wandb needs an API key: set the environment variable WANDB_API_KEY, call `wandb login`, or "
                "keep the run on this machine with loggers.wandb.mode=offline"
            )
        self._mode, self._project, self._entity = mode, project, entity
        self._finish_timeout, self._system_metrics = finish_timeout, system_metrics

    def open(self, opening: Opening) -> None:
        folder = opening.make_sink_folder("wandb")
        # The library's service reads these at its start; it then writes nothing to the home directory or the terminal.
        for name in ("WANDB_CACHE_DIR", "WANDB_DATA_DIR", "WANDB_CONFIG_DIR"):
            os.environ.setdefault(name, str(folder))
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        is_offline = self._mode == "offline"
        if is_offline:
            for earlier_folder in folder.glob("offline-run-*"):
                shutil.rmtree(earlier_folder)
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
            # Weights & Biases refuses these characters.
            project=re.sub(r"[/\\#?%:]", "-", self._project or opening.name)[:128],
            entity=self._entity,
            id=opening.get_run_id(),
            name=opening.label,
            group=opening.label.rpartition("/")[0] or None,
            config={**flatten_config(opening.config), **opening.hyperparameters},
            resume=None if is_offline else "allow",
            reinit="create_new",
            settings=settings,
        )
        self._n_logged_rows = 0 if is_offline else int(self._run.summary.get(_N_ROWS_KEY) or 0)
        self._defined_names: set[str] = set()

    def rows(self, rows: Sequence[Row]) -> None:
        new_rows = [row for row in rows if row.number >= self._n_logged_rows]
        for row in new_rows:
            self._log(row, dict(row.metrics), dict(row.counters))
        if new_rows:
            self._run.summary[_N_ROWS_KEY] = new_rows[-1].number + 1

    def text(self, row: Row, tag: str, markdown: str) -> None:
        import wandb

        if row.number >= self._n_logged_rows:
            page = f"<pre style='white-space: pre-wrap'>{html.escape(markdown)}</pre>"
            self._log(row, {tag: wandb.Html(page, inject=False)}, {row.x: row.x_value})

    def picture(self, row: Row, tag: str, path: Path) -> None:
        import wandb

        if row.number >= self._n_logged_rows:
            extension: Any = path.suffix.lstrip(".")
            media = wandb.Image(str(path)) if extension == "png" else wandb.Video(str(path), format=extension)
            self._log(row, {tag: media}, {row.x: row.x_value})

    def close(self, ending: Ending) -> None:
        summary = {
            key: value for key, value in flatten_config(ending.summary).items() if isinstance(value, int | float | str)
        }
        self._run.summary.update({**summary, **ending.final_metrics, "state": ending.state})
        if ending.error:
            self._run.summary["error"] = ending.error
        self._run.finish(exit_code=0 if ending.succeeded else 1)

    def abandon(self) -> None:
        """Kill the library's process, which would delay the end of this process while it tries to reach a server."""
        from wandb.sdk import wandb_setup

        with suppress(AttributeError):  # the process has not started yet, or has ended
            connection: Any = wandb_setup.singleton()._connection
            connection._cleanup()
            connection._proc._process.kill()

    def _log(self, row: Row, values: dict[str, Any], counters: dict[str, int]) -> None:
        for name in counters.keys() - self._defined_names:
            self._run.define_metric(name, hidden=True)
        for tag in values.keys() - self._defined_names:
            self._run.define_metric(tag, step_metric=row.x)
        self._defined_names |= {*values, *counters}
        self._run.log({**counters, **values})


def _has_api_key() -> bool:
    """Return whether the environment, or the file that `wandb login` writes, contains an API key."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    host = urlparse(os.environ.get("WANDB_BASE_URL") or _SERVER_URL).hostname or ""
    try:
        return netrc.netrc(str(path)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
