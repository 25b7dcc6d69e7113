"""A run of several processes: the first owns the run folder, and the others write to temporary folders."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.core.processes import ProcessGroup
from llmrl.core.records import State
from llmrl.run import ownership, queued, status
from llmrl.run.artifacts import RUN_KEY
from llmrl.run.checkpoints import CheckpointStore
from llmrl.run.config_hash import config_hash
from llmrl.run.log_file import FILE_NAME as LOG_NAME
from llmrl.run.metrics import MetricLog
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.provenance import FILE_NAME as PROVENANCE_NAME
from llmrl.run.run import Run
from llmrl.run.signals import StopFlag
from llmrl.run.sink import FOLDER as SINKS_FOLDER
from llmrl.run.tensorboard_file import EVENT_FILE_PATTERN

_CHECKPOINT_FOLDER = "checkpoints"
_EXCLUDED_FILE_NAMES = (
    *(_CHECKPOINT_FOLDER, LOG_NAME, PROVENANCE_NAME, ownership.FILE_NAME, queued.FILE_NAME, status.FILE_NAME),
    SINKS_FOLDER,
)


def open_run(processes: ProcessGroup, config: Mapping[str, Any], seed: int, open_main_run: Callable[[], Run]) -> Run:
    """Open a run in the first of the `processes`; the other processes get a `WorkerRun` and write to no sinks.

    Args:
        processes: processes that compute the run together.
        config: resolved config of the run.
        seed: seed of the run.
        open_main_run: function that opens the run (`Run.open`); only the first process calls it.

    Raises:
        RunFolderError, CheckpointError: `Run.open` raised them.
        ConfigError: the processes were started with different configs.
        ProcessesError: the first process could not open the run.
    """
    run: Run
    if not processes.is_main:
        run = WorkerRun(processes)
        run.config_digest = config_hash(config)
    else:
        run = open_main_run()
        run.processes = processes
    if processes.world_size == 1:
        return run
    try:
        process_identity = (socket.gethostname(), os.getpid(), ownership.get_process_start(os.getpid()))
        local_state = (str(run.folder), run.state, run.iteration, run.result, process_identity, run.config_digest)
        states = processes.all_gather_object(local_state)
        if len({digest for *_, digest in states}) > 1:
            raise ConfigError(f"the {processes.world_size} processes of this run were started with different configs")
        if isinstance(run, WorkerRun):
            folder, run.state, run.iteration, run.result, run.main_process, _ = states[0]
            run.config, run.seed = dict(config), seed
            if not run.finished:
                run.follow(Path(folder))
        # The first process must not change the run before all others have read its state.
        processes.barrier()
    except BaseException as error:
        run.__exit__(type(error), error, None)
        raise
    return run


class WorkerRun(Run):
    """A run whose run folder the first process writes.

    The loop of this process writes to a temporary folder, which is removed at the end. On a resume, it gets a copy of
    the files that a loop reads.
    """

    def __init__(self, processes: ProcessGroup) -> None:
        super().__init__()
        # The first process logs the same warnings.
        logging.getLogger("llmrl").setLevel(logging.ERROR)
        self.processes = processes
        # The flag prints nothing and does not interrupt, because the first process decides when all processes stop.
        self.stop_flag = StopFlag(forward_signal=self._signal_main_process)
        self.main_process: tuple[str, int, str | None] = ("", 0, None)  # host, process id and start time
        self._temporary_folder: tempfile.TemporaryDirectory[str] | None = None

    def follow(self, folder: Path) -> None:
        """Load the state of the run in `folder`, which the first process has opened.

        Raises:
            CheckpointError: the checkpoint to resume from cannot be read in this process.
        """
        self._temporary_folder = tempfile.TemporaryDirectory(prefix=f"llmrl-process{self.processes.rank}-")
        self.folder = Path(self._temporary_folder.name)
        position = None
        if self.state == "resumed":
            store = CheckpointStore(folder / _CHECKPOINT_FOLDER, config_hash=self.config_digest)
            _, self.restored_state = store.load(store.get_path(self.iteration))
            position = self.restored_state.pop(RUN_KEY)["metrics"]
            _copy_run_files(folder, self.folder)
        self.metrics = MetricLog(self.folder, position)

    def _signal_main_process(self) -> None:
        """Send SIGTERM to the first process, if it is on this machine, so that it stops soon.

        A second SIGINT would stop it at once, without a checkpoint.
        """
        host, pid, start_time = self.main_process
        if host == socket.gethostname() and ownership.get_process_start(pid) == start_time:
            os.kill(pid, signal.SIGTERM)

    def checkpoint(self, iteration: int, state: State) -> Path:
        """Do nothing, because the first process saves the same state."""
        return self.folder

    def progress(self, total: float | None, unit: str, description: str, done: float = 0) -> ProgressBar:
        return ProgressBar(total, unit, description, done=done, draws_bar=False)

    def _finish(self) -> None:
        self.metrics.close()

    def _record_early_end(self, error: BaseException) -> None:
        if hasattr(self, "metrics"):
            self.metrics.close()

    def _release(self) -> None:
        if self._temporary_folder is not None:
            self._temporary_folder.cleanup()


def _copy_run_files(folder: Path, destination: Path) -> None:
    """Copy the files that a loop has written to a run folder; link arrays, which are large and never changed."""
    for path in folder.iterdir():
        has_excluded_name = path.name in _EXCLUDED_FILE_NAMES or path.match(EVENT_FILE_PATTERN)
        if has_excluded_name or path.name.startswith((".", "backup", "code-")):
            continue
        if path.is_dir():
            shutil.copytree(path, destination / path.name, copy_function=_copy_or_link)
        else:
            shutil.copy2(path, destination / path.name)


def _copy_or_link(source: str, destination: str) -> None:
    if source.endswith(".npz"):
        Path(destination).symlink_to(Path(source).absolute())
    else:
        shutil.copy2(source, destination)
