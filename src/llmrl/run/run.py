"""The life cycle of a run: folder, ownership, status, metrics, checkpoints and signals.

A loop uses it like this:

with Run.open(root, name, config, overrides, seed) as run:
    if run.finished:
        return run.result
    if run.restored_state is not None:
        self.load_state_dict(run.restored_state)
    for iteration in range(run.iteration, total):
        run.metrics.log("update", "updates", self.iterate(), updates=iteration + 1)
        run.safe_point(iteration + 1, self.state_dict)
    run.result = self.score()
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from llmrl.core.atomic_files import remove_file_ignoring_errors
from llmrl.core.errors import (
    BudgetExhausted,
    CallInterrupted,
    LLMError,
    RunFolderError,
    attach_traceback_path,
    summarize_error,
)
from llmrl.core.processes import ProcessGroup
from llmrl.core.records import State
from llmrl.core.secrets import check_no_secrets, check_no_secrets_in_arguments
from llmrl.run import ownership, status
from llmrl.run.artifacts import (
    CONFIG_NAME,
    PARTIAL_BACKUP_FOLDER,
    RUN_KEY,
    move_to_backup,
    remove_if_rejected,
    remove_temporary_files,
    save_config,
)
from llmrl.run.checkpoints import CheckpointStore, CheckpointTimer
from llmrl.run.config_hash import config_hash
from llmrl.run.files import check_no_links, write_atomic, write_json
from llmrl.run.folder import create_run_folder, find_run_folder
from llmrl.run.log_file import LogFile
from llmrl.run.metrics import MetricLog
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.provenance import write_provenance
from llmrl.run.queued import warn_of_changed_code
from llmrl.run.signals import MAX_STOP_S, StopFlag, Stopped, WorkDiscarded, agree_on_safe_point
from llmrl.run.sink import FOLDER as SINKS_FOLDER
from llmrl.run.sink import Opening, Sink
from llmrl.run.tensorboard_file import parse_hyperparameters

log = logging.getLogger(__name__)

TRACEBACK_NAME = "traceback.txt"
STOP_GRACE_S = 5.0
"""Seconds after a stop signal from which `Run.stop_after_grace` saves and stops. A loop that does not call it is
interrupted later (`llmrl.run.signals.DISCARD_WORK_S`)."""
_LINK_FOLDER_PATTERNS = ("backup_*", f"{SINKS_FOLDER}/*")
"""Patterns of folders that may contain symbolic links: llmrl does not write to backups; sinks' libraries make links."""


class Run:
    """A run folder that this process owns. Create one with `Run.open` and use it as a context manager.

    Attributes:
        folder: the run folder.
        seed, config: inputs that determine the run; `config` is a resolved, plain mapping.
        config_digest: hash of the config.
        state: `new`, `resumed`, or `finished` (nothing is left to do, and nothing may be written).
        restored_state: state of the checkpoint to resume from; None without one.
        iteration: iteration of that checkpoint; 0 for a new run.
        metrics, checkpoints: metric log and checkpoint store; a finished run has neither.
        stop_flag: flag that a signal sets to stop the run.
        status: content of `status.json`.
        result: scalar result of the run; set it before leaving the context.
        summary: findings of the loop as plain data, saved as `summary.json`; set it before leaving the context.
        processes: group of processes that compute the run together. Only the first process writes to the folder; the
            others have a `WorkerRun` (`llmrl.run.distributed.open_run`).
    """

    metrics: MetricLog
    checkpoints: CheckpointStore

    @classmethod
    def open(
        cls,
        root: Path,
        name: str,
        config: Mapping[str, Any],
        overrides: Iterable[str] = (),
        seed: int = 0,
        *,
        config_digest: str | None = None,
        make_sinks: Callable[[], Mapping[str, Sink]] = dict,
    ) -> Run:
        """Find or create the run folder and take ownership of it; return the run.

        Args:
            root: folder of all outputs.
            name: folder of this experiment or sweep inside `root`.
            config: resolved config as plain data. `rerun`, `resume` and `checkpoint_seconds` determine the treatment of
                earlier attempts and the interval of checkpoints; without them, an unfinished run is resumed.
            overrides: overrides of the command line, for the label of the folder and the hyperparameters of sinks.
            seed: seed of the run.
            config_digest: hash of the config, if the caller has computed it; None: it is computed here.
            make_sinks: function that returns the sinks by the names of their options; not called for a finished run.

        Raises:
            ConfigError: the config or an override contains a secret.
            RunFolderError: the folder cannot be written or is in use by another process.
            CheckpointError: there are checkpoints, but none can be used.
        """
        run, rerun = cls(), bool(config.get("rerun", False))
        overrides = list(overrides)
        check_no_secrets(config)
        check_no_secrets_in_arguments(overrides)
        run.seed, run.config, run.config_digest = seed, dict(config), config_digest or config_hash(config)
        folder = find_run_folder(root, name, run.config_digest, overrides, seed)
        run._created_folders = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        run.folder = create_run_folder(root, name, run.config_digest, overrides, seed, config.get("private", True))
        run.checkpoint_timer.interval = config.get("checkpoint_seconds", run.checkpoint_timer.interval)
        last_status = status.read_latest_status(run.folder, rerun)
        # An earlier rerun was killed while it moved the old content to a backup.
        has_interrupted_rerun = (run.folder / PARTIAL_BACKUP_FOLDER).exists()
        starts_anew = rerun or has_interrupted_rerun
        if not starts_anew and run._adopt_if_finished(last_status):
            return run
        try:
            sinks = make_sinks()  # before anything is moved or written, because a sink may reject its options
        except BaseException as error:
            remove_if_rejected(run._created_folders, error)
            raise
        run._ownership = ownership.Ownership(run.folder, attempt=last_status.attempt + 1 if last_status else 1)
        # The previous owner may have just finished the run.
        if not starts_anew and run._adopt_if_finished(status.read_latest_status(run.folder, rerun)):
            run._release()
            return run
        try:
            run._start_attempt(root, name, overrides, sinks, anew=starts_anew or not config.get("resume", True))
        except BaseException as error:
            run._record_early_end(error)
            run._wait_for_sinks()
            run._release()
            remove_if_rejected(run._created_folders, error)
            raise
        return run

    def __init__(self) -> None:
        self.folder = Path()
        self.seed = 0
        self.config: dict[str, Any] = {}
        self.config_digest = ""
        self.state: Literal["new", "resumed", "finished"] = "new"
        self.restored_state: State | None = None
        self.iteration = 0
        self.stop_flag = StopFlag(
            f"saving and stopping, within {MAX_STOP_S} s; a second Ctrl-C stops at once",
            self.make_early_stop_error,
            self._record_forced_exit,
        )
        self.status = status.Status()
        self.result: float | None = None
        self.summary: dict[str, Any] = {}
        self.checkpoint_timer = CheckpointTimer()
        self.processes = ProcessGroup()
        self._ownership: ownership.Ownership | None = None
        self._log_file: LogFile | None = None
        self._created_folders: list[Path] = []  # the folder and its parents, if this attempt made them
        self._saved_iteration: int | None = None  # iteration of the newest checkpoint; None: no checkpoint

    @property
    def finished(self) -> bool:
        """True if an earlier attempt has finished this run, so that nothing is left to do."""
        return self.state == "finished"

    def _adopt_if_finished(self, last_status: status.Status | None) -> bool:
        """Return whether `last_status` is the status of a finished run; if so, copy state and result from it."""
        if last_status is None or last_status.state != "finished":
            return False
        self.state, self.status, self.result = "finished", last_status, last_status.result
        return True

    def _start_attempt(
        self, root: Path, name: str, overrides: list[str], sinks: Mapping[str, Sink], anew: bool
    ) -> None:
        assert self._ownership is not None
        if anew:
            move_to_backup(self.folder)
        check_no_links(self.folder, _LINK_FOLDER_PATTERNS)
        self.status = status.Status(attempt=self._ownership.owner.attempt, overrides=overrides)
        self._log_file = LogFile(self.folder)
        self.checkpoints = CheckpointStore(self.folder / "checkpoints", config_hash=self.config_digest)
        self.checkpoints.clean()
        remove_temporary_files(self.folder)
        newest_checkpoint = self.checkpoints.load_newest()
        metrics_position = None
        if newest_checkpoint is not None:
            self.state = "resumed"
            self.iteration, self.restored_state = newest_checkpoint
            self._saved_iteration = self.iteration
            metrics_position = self.restored_state.pop(RUN_KEY)["metrics"]
        save_config(self.folder / CONFIG_NAME, self.config)
        attempt = self.status.attempt
        warn_of_changed_code(self.folder, attempt, code_digest=write_provenance(self.folder, attempt))
        opening = Opening(
            self.folder,
            root.expanduser().absolute(),
            name,
            "/".join(self.folder.parts[-2:]),
            self.config,
            parse_hyperparameters(overrides, self.seed),
            started=self.status.started,
        )
        self.metrics = MetricLog(self.folder, metrics_position, sinks, opening)
        self.status.write(self.folder)
        origin = f"resumed from iteration {self.iteration}" if self.state == "resumed" else "new"
        log.info("run %s (%s, attempt %d, config hash %s)", self.folder, origin, attempt, self.config_digest)

    def __enter__(self) -> Run:
        if not self.finished:
            self.stop_flag.__enter__()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.finished:
            return
        original_error = error
        if isinstance(error, WorkDiscarded):
            error = self.make_early_stop_error()
        with self.stop_flag.saving():
            try:
                if error is None:
                    self._finish()
                else:
                    self._record_early_end(error)
            except BaseException as failure:
                if error is None:
                    self._record_early_end(failure)
                raise
            finally:
                self._wait_for_sinks()
                self._release()
                remove_if_rejected(self._created_folders, error)
                self.stop_flag.__exit__()
        if error is None or (isinstance(error, Stopped) and error.stops_all_processes):
            # All processes wait until every one has written its files: a launcher may kill the others when one exits.
            self.processes.barrier()
        if error is not original_error and error is not None:
            raise error from original_error

    def checkpoint(self, iteration: int, state: State) -> Path:
        """Save `state` as the checkpoint of `iteration`, the number of finished iterations, and return its path.

        A signal that would interrupt the save takes effect after it.

        Raises:
            CheckpointError: the checkpoint cannot be written.
            RunFolderError: another process has taken over the folder, or has changed the run's `metrics.jsonl`.
        """
        self._check_ownership()
        with self._log_context(), self.saving():
            path = self.checkpoints.save(iteration, {**self.get_resume_position(), **state})
            self._saved_iteration = iteration
        self.checkpoint_timer.finish()
        return path

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Return a context for work on a checkpoint, which signals do not interrupt and whose time is measured."""
        start = time.monotonic()
        with self.stop_flag.saving():
            yield
            self.checkpoint_timer.add(time.monotonic() - start)

    def get_resume_position(self) -> State:
        """Return the end of `metrics.jsonl`, for a state that is saved only after later rows are logged."""
        return {RUN_KEY: {"metrics": self.metrics.position()}}

    def safe_point(self, iteration: int, state: Callable[[], State]) -> None:
        """Mark a point from which the loop can be resumed: save if due, and stop if a signal has requested it.

        Args:
            iteration: number of iterations done.
            state: function that returns everything the rest of the run depends on, without side effects.

        Raises:
            Stopped: a signal has requested a stop; the state is saved.
            RunFolderError: `metrics.jsonl` was removed, replaced or changed by another process.
            ProcessesError: the processes of this run have logged different numbers.
        """
        self.metrics.check()
        signal_number, is_due = agree_on_safe_point(
            self.processes, self.stop_flag.signal, self.checkpoint_timer.is_due(), self.metrics.digest
        )
        if is_due:
            self.checkpoint(iteration, state())
        if signal_number is not None:
            raise Stopped(self.folder, signal_number)

    def stop_after_grace(self, iteration: int, state: Callable[[], State]) -> None:
        """Stop early if a signal came more than `STOP_GRACE_S` ago; call it often between two safe points.

        `state` must return the state of the last safe point: the work since then is discarded, and repeated on resume.

        Raises:
            Stopped: a signal has requested a stop; `state()` is saved.
        """
        if any(self.processes.all_gather_object(self.stop_flag.seconds_since_signal > STOP_GRACE_S)):
            with self._log_context():
                log.info("no safe point within %g s: the work since the last one is discarded", STOP_GRACE_S)
            self.safe_point(iteration, state)

    def make_early_stop_error(self) -> Stopped:
        """Return the exception for a run that must stop before it reaches its next safe point."""
        assert self.stop_flag.signal is not None
        note = "there is no checkpoint yet, so the run starts anew"
        if self._saved_iteration is not None:
            note = f"the work since the checkpoint of iteration {self._saved_iteration} is repeated on resume"
        return Stopped(self.folder, self.stop_flag.signal, note, stops_all_processes=False)

    def _record_forced_exit(self) -> None:
        """Record that the process ends inside a call that no signal interrupts; take no lock of the main thread."""
        stopped = self.make_early_stop_error()
        if self._ownership is not None and self._ownership.is_held:
            self.status.state, self.status.error = stopped.state, stopped.reason
            # If that fails, the run looks as if its process was killed, and can still be resumed.
            with suppress(OSError, RunFolderError):
                self.status.write(self.folder)
            self._ownership.release()
        os.write(2, f"\n{stopped}\n".encode())

    def _log_context(self) -> AbstractContextManager[None]:
        """Return a context in which messages go to this run's log file, even in a thread that computes several runs."""
        return nullcontext() if self._log_file is None else self._log_file.receive_messages()

    @contextmanager
    def save_on_llm_error(
        self, iteration: int, state: Callable[[], State], changes_weights: bool = False
    ) -> Iterator[None]:
        """Return a context for a block that calls a language model; the loop must be resumable from its start.

        If the model cannot be reached, the budget is used up, or a signal ends the wait for a reply, the state before
        the block is saved.

        Args:
            iteration: number of iterations finished before the block.
            state: function that returns the state before the block, as in `safe_point`.
            changes_weights: whether the block changes, in place, weights that the state refers to. If so, the state is
                not saved when a signal interrupts the block.

        Raises:
            Stopped: a signal has requested a stop.
        """
        state_before = state()
        try:
            yield
        except LLMError as error:
            self.checkpoint(iteration, state_before)
            if isinstance(error, CallInterrupted) and self.stop_flag.signal is not None:
                raise Stopped(self.folder, self.stop_flag.signal) from error
            raise
        except Stopped as stopped:
            if stopped.stops_all_processes or changes_weights:
                raise
            self.checkpoint(iteration, state_before)
            raise Stopped(self.folder, stopped.signal, stops_all_processes=False) from stopped

    def progress(self, total: float | None, unit: str, description: str, done: float = 0) -> ProgressBar:
        """Return a progress display (context manager) that keeps `status.json` up to date.

        A loop calls this at its start, so the time to its first safe point is measured from here.
        """
        self.checkpoint_timer.start()

        def write_progress(run_progress: status.RunProgress) -> None:
            self.status.progress = run_progress
            self.status.write(self.folder, durable=False)

        return ProgressBar(total, unit, description, done=done, on_report=write_progress)

    def _check_ownership(self) -> None:
        if self._ownership is None or not self._ownership.is_held:
            if not self.folder.is_dir():
                raise RunFolderError(f"{self.folder} has been removed; the same command starts this run anew")
            raise RunFolderError(
                f"{self.folder} has been taken over by {ownership.read_owner(self.folder) or 'an unknown process'}; "
                "this process stops without writing to it"
            )

    def _finish(self) -> None:
        self._check_ownership()
        self.metrics.position()  # syncs all rows to disk
        self.status.state, self.status.result, self.status.error = "finished", self.result, ""
        remove_file_ignoring_errors(self.folder / TRACEBACK_NAME)
        self.metrics.close(self.status.state, {"result": self.result} | self.summary)
        write_json(self.folder / status.SUMMARY_NAME, self.summary)
        self.status.write(self.folder)  # last, because a run with this status counts as finished
        log.info("run %s finished, result %s", self.folder, "none" if self.result is None else f"{self.result:.6g}")

    def _record_early_end(self, error: BaseException) -> None:
        """Record why the run ended early, unless another process has taken over the folder."""
        if self._ownership is None or not self._ownership.is_held:
            log.error("nothing recorded in %s, which another process has taken over: %s", self.folder, error)
            return
        state: status.StatusState = "failed"
        if isinstance(error, Stopped):
            state = error.state
        elif isinstance(error, KeyboardInterrupt):
            state = "stopped"
        elif isinstance(error, BudgetExhausted):
            state = "budget_exhausted"
        text = "".join(traceback.format_exception(error))
        self.status.state = state
        self.status.error = error.reason if isinstance(error, Stopped) else summarize_error(error)
        has_failed = state == "failed"
        if self._log_file is not None:
            level = logging.ERROR if has_failed else logging.WARNING
            self._log_file.write(log, level, text if has_failed else self.status.error)
        try:
            if has_failed:
                write_atomic(self.folder / TRACEBACK_NAME, text)
                attach_traceback_path(error, str(self.folder / TRACEBACK_NAME))
            self.status.write(self.folder)
        except RunFolderError as write_error:
            # A full disk must not hide the error that ended the run.
            log.error("could not record the failure in %s: %s", self.folder, write_error)
        if hasattr(self, "metrics"):
            self.metrics.close(state, error=self.status.error)

    def _wait_for_sinks(self) -> None:
        """Wait a limited time until the sinks have received all rows. All other files are written before."""
        if hasattr(self, "metrics"):
            self.metrics.wait_for_sinks(lambda: self.stop_flag.requested)

    def _release(self) -> None:
        if self._log_file is not None:
            self._log_file.close()
        if self._ownership is not None:
            self._ownership.release()
