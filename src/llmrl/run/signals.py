"""Safe stops: a signal sets a flag, and the loop stops at its next safe point, or is interrupted if it reaches none.

A loop may be waiting for a rollout, a model, a build or a library. A watching thread therefore counts the seconds since
the signal. After `DISCARD_WORK_S` it makes the signal handler raise an exception in the main thread. After
`FORCED_EXIT_S` it ends the process, because the main thread is inside a library call that no signal interrupts. Saves
are not interrupted.

A process that computes several runs has one flag in its main thread, the leader. Each run has a thread and a flag of
its own, which gets the signal from the leader. An interrupt discards the work of the main thread, for which these
threads wait. The end of the process ends all runs.

Worker processes: forked ones inherit these handlers but ignore the signals, because the flag belongs to the process
that made it. Spawned ones start with Python's own handlers and should ignore SIGINT and SIGUSR1/2 themselves, because a
terminal sends Ctrl-C, and a scheduler its warning, to every process of a run.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from llmrl.core.errors import ProcessesError

if TYPE_CHECKING:
    from llmrl.core.processes import ProcessGroup

log = logging.getLogger(__name__)

SIGNALS = tuple(name for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP") if hasattr(signal, name))
"""Names of the signals that stop a run: Ctrl-C, a scheduler's request to end, its early warnings of a time limit or
preemption, and a closed terminal."""

DISCARD_WORK_S = 8.0
"""Seconds after a signal at which the work since the last safe point is discarded, if the run has not stopped yet."""
SECOND_DISCARD_S = 12.0
"""Seconds after a signal at which the exception is raised again, if the first was suppressed or a save prevented it."""
FORCED_EXIT_S = 16.0
"""Seconds after a signal at which the process is ended, because its main thread cannot be interrupted."""
MAX_STOP_S = 20
"""Seconds after a stop signal within which a run ends; SLURM kills 30 s (KillWait) after SIGTERM."""

_SAVING_POLL_S = 0.5
"""Seconds between two checks whether a save has ended."""
_RESPONSE_TIMEOUT_S = 1.0
"""Seconds within which a main thread that is not inside a library call handles a signal."""
_END_BYTE = 0
"""Byte that ends the watching thread, in place of a signal number."""

_n_watched_flags = 0  # number of flags of this process that have a watching thread


def _detach_wakeup_pipe() -> None:
    """Stop a forked child from writing its signals into the pipe of its parent."""
    if _n_watched_flags:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_detach_wakeup_pipe)


class Stopped(BaseException):  # not an `Exception`, which libraries catch
    """The exception of a run that a signal has stopped; the same command resumes it from its newest checkpoint.

    Args:
        folder: run folder.
        signal_number: number of the signal.
        work_text: text for the message: what is saved, or which work is repeated on resume.
        stops_all_processes: whether all processes of the run stop at this point; False: only this one does.
    """

    def __init__(
        self, folder: Path, signal_number: int, work_text: str = "everything is saved", stops_all_processes: bool = True
    ) -> None:
        self.signal, self.stops_all_processes = signal_number, stops_all_processes
        self.exit_code = 128 + signal_number
        self.reason = f"stopped by {signal.Signals(signal_number).name}; {work_text}"
        super().__init__(f"{self.reason}. Repeat the same command to resume {folder}")

    @property
    def state(self) -> Literal["stopped", "preempted"]:
        """State for `status.json`: `stopped` by a user (SIGINT), or `preempted` by any other signal."""
        return "stopped" if self.signal == signal.SIGINT else "preempted"


class WorkDiscarded(Stopped):
    """The exception that discards the work of the main thread for several runs; runs raise `Stopped` instead."""

    def __init__(self, signal_number: int) -> None:
        work_text = "the work of all runs of this process is discarded"
        super().__init__(Path(), signal_number, work_text, stops_all_processes=False)


_leader_of_thread: ContextVar[StopFlag | None] = ContextVar("llmrl_stop", default=None)
"""Flag of the main thread from which flags that are entered in the present thread get signals."""


class StopFlag:
    """A context manager in which one of `SIGNALS` sets `requested`. A second Ctrl-C raises an exception outside saves.

    Python delivers signals to the main thread only. A flag that is entered in another thread gets them from the flag of
    the main thread on which that thread has called `lead_calling_thread`; without one, it does nothing.

    Args:
        message: text to print on the first signal, after its name; empty: nothing is printed.
        make_interrupt: function that makes the exception to raise in the main thread `DISCARD_WORK_S` after the
            signal; None: no exception is raised.
        on_forced_exit: function that another thread calls `FORCED_EXIT_S` after the signal, before the process ends.
        forward_signal: function that another thread calls a second after a signal, instead of an interrupt.
    """

    def __init__(
        self,
        message: str = "",
        make_interrupt: Callable[[], BaseException] | None = None,
        on_forced_exit: Callable[[], None] = lambda: None,
        forward_signal: Callable[[], None] | None = None,
    ) -> None:
        self._message, self._make_interrupt = message, make_interrupt
        self._on_forced_exit, self._forward_signal = on_forced_exit, forward_signal
        self.signal: int | None = None
        self._signal_time = 0.0
        self._pid = os.getpid()
        self._previous_handlers: dict[int, Any] = {}  # by signal
        self._n_saves = 0
        self._should_interrupt_after_saving = False
        self._has_printed_message = False
        self._leader: StopFlag | None = None
        self._followers: tuple[StopFlag, ...] = ()
        self._followers_lock = threading.Lock()
        self._should_interrupt_work = False  # whether the next signal raises the interrupt; set by the watching thread
        # Write end of a pipe to that thread. Python's C-level handler writes signal numbers to it, even during C calls.
        self._wakeup_fd: int | None = None
        self._previous_wakeup_fd = -1

    @property
    def requested(self) -> bool:
        """True if the loop should stop at its next safe point."""
        return self.signal is not None

    @property
    def seconds_since_signal(self) -> float:
        """Seconds since the first signal; 0 without one."""
        return 0.0 if self.signal is None else time.monotonic() - self._signal_time

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is not threading.main_thread():
            if (leader := _leader_of_thread.get()) is not None:
                leader._add_follower(self)
                return self
            log.warning("not in the main thread: this run cannot be stopped safely by signals")
            return self
        global _n_watched_flags
        if self._make_interrupt is not None or self._forward_signal is not None:
            _n_watched_flags += 1
            read_fd, self._wakeup_fd = os.pipe()
            os.set_blocking(self._wakeup_fd, False)
            self._previous_wakeup_fd = signal.set_wakeup_fd(self._wakeup_fd, warn_on_full_buffer=False)
            target = self._watch_for_signal if self._forward_signal is None else self._forward_signals
            threading.Thread(target=target, args=(read_fd,), name="llmrl-stop", daemon=True).start()
        for name in SIGNALS:
            number = getattr(signal, name)
            if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                continue  # the process was started by nohup
            self._previous_handlers[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(self, *_: object) -> None:
        global _n_watched_flags
        if self._leader is not None:
            self._leader._remove_follower(self)
            self._leader = None
            return
        self._should_interrupt_work = False
        outer_flag: StopFlag | None = None
        for number, handler in self._previous_handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
            handler_owner = getattr(handler, "__self__", None)
            outer_flag = handler_owner if isinstance(handler_owner, StopFlag) else outer_flag
        self._previous_handlers.clear()
        if self._wakeup_fd is not None:
            _n_watched_flags -= 1
            signal.set_wakeup_fd(self._previous_wakeup_fd, warn_on_full_buffer=False)
            os.write(self._wakeup_fd, bytes([_END_BYTE]))
            os.close(self._wakeup_fd)
            self._wakeup_fd = None
        if outer_flag is not None and self.signal is not None and outer_flag.signal is None:
            outer_flag._has_printed_message = self._has_printed_message
            outer_flag._record_signal(self.signal, self._signal_time)  # the signal was meant for the outer flag, too
            if outer_flag._wakeup_fd is not None:
                os.write(outer_flag._wakeup_fd, bytes([self.signal]))

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Return a context for a save: an interrupt waits until the save is done, and is raised then."""
        # Only the main thread is interrupted. It may save for a run whose flag belongs to another thread.
        is_main_thread = threading.current_thread() is threading.main_thread()
        flag = self._leader if self._leader is not None and is_main_thread else self
        flag._n_saves += 1
        try:
            yield
        finally:
            flag._n_saves -= 1
        if flag._should_interrupt_after_saving and not flag._n_saves:
            raise KeyboardInterrupt

    def lead_calling_thread(self) -> None:
        """Make this flag the leader of flags that are entered in the calling thread, which is not the main one."""
        _leader_of_thread.set(self)

    def _add_follower(self, follower: StopFlag) -> None:
        follower._leader, follower._has_printed_message = self, True
        with self._followers_lock:
            self._followers = (*self._followers, follower)
        if self.signal is not None:  # a later signal reaches the follower by `_record_signal`
            follower._record_signal(self.signal, self._signal_time)

    def _remove_follower(self, follower: StopFlag) -> None:
        with self._followers_lock:
            self._followers = tuple(flag for flag in self._followers if flag is not follower)

    def _handle_signal(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return
        is_first_signal = self.signal is None
        if is_first_signal:
            self._record_signal(number, time.monotonic())
        if self._should_interrupt_work:
            self._should_interrupt_work = False
            if self._make_interrupt is not None and not self._n_saves:
                raise self._make_interrupt()
        elif number == signal.SIGINT and not is_first_signal:
            if not self._n_saves:
                raise KeyboardInterrupt
            self._should_interrupt_after_saving = True
            self._print_message("stopping when the checkpoint is saved", number)

    def _record_signal(self, number: int, signal_time: float) -> None:
        self.signal, self._signal_time = number, signal_time
        for follower in self._followers:
            follower._record_signal(number, signal_time)
        if self._message and not self._has_printed_message:
            self._has_printed_message = True
            self._print_message(self._message, number)

    def _forward_signals(self, read_fd: int) -> None:
        """Run the watching thread of a flag that forwards signals.

        It forwards a signal unless another one or the end of the flag follows within a second, because senders often
        signal all processes.
        """
        assert self._forward_signal is not None
        handled_signals = {getattr(signal, name) for name in SIGNALS}
        try:
            while _END_BYTE not in (received_signals := os.read(read_fd, 64)):
                has_stop_signal = bool(handled_signals.intersection(received_signals))
                if has_stop_signal and not select.select([read_fd], [], [], _RESPONSE_TIMEOUT_S)[0]:
                    self._forward_signal()
        finally:
            os.close(read_fd)

    def _watch_for_signal(self, read_fd: int) -> None:
        """Run the watching thread: wait for a signal, then make sure that the run ends."""
        handled_signals = {getattr(signal, name) for name in SIGNALS}
        try:
            while not (stop_signals := handled_signals.intersection(received_signals := os.read(read_fd, 64))):
                if _END_BYTE in received_signals:
                    return
            number, signal_time = stop_signals.pop(), time.monotonic()
            wait_for_end = partial(_wait_for_end, read_fd, signal_time)
            if wait_for_end(min(_RESPONSE_TIMEOUT_S, DISCARD_WORK_S)):
                return
            # If the main thread is in a call, its handler has not printed the message yet.
            if self.signal is None and self._message:
                self._has_printed_message = True
                self._print_message(self._message, number)
            for n_seconds in (DISCARD_WORK_S, SECOND_DISCARD_S):
                if wait_for_end(n_seconds):
                    return
                if not self._n_saves:
                    self._should_interrupt_work = True
                    main_thread_id = threading.main_thread().ident
                    assert main_thread_id is not None
                    # Sent to the main thread, to interrupt a system call in which it waits.
                    signal.pthread_kill(main_thread_id, number)
            n_seconds = FORCED_EXIT_S
            while not wait_for_end(n_seconds):
                if not self._is_any_saving:
                    self._force_exit(number, signal_time)
                while self._is_any_saving and not wait_for_end(time.monotonic() - signal_time + _SAVING_POLL_S):
                    pass
                # After a save the run should end by itself.
                n_seconds = time.monotonic() - signal_time + FORCED_EXIT_S - SECOND_DISCARD_S
        finally:
            os.close(read_fd)

    def _force_exit(self, number: int, signal_time: float) -> NoReturn:
        """Record the stop of all runs, and end the process."""
        self._has_printed_message = True
        self._record_signal(number if self.signal is None else self.signal, signal_time)
        # A run that another run waits for was entered later, so it comes first.
        for follower in reversed(self._followers):
            follower._on_forced_exit()
        self._on_forced_exit()
        assert self.signal is not None
        os._exit(128 + self.signal)

    @property
    def _is_any_saving(self) -> bool:
        return bool(self._n_saves) or any(follower._n_saves for follower in self._followers)

    def _print_message(self, text: str, number: int) -> None:
        # Not by logging or sys.stderr: the signal may have interrupted one of their writes.
        os.write(2, f"\n{signal.Signals(number).name}: {text}\n".encode())


def _wait_for_end(read_fd: int, signal_time: float, n_seconds: float) -> bool:
    """Wait until `n_seconds` after a signal; return whether the context of its flag was left by then.

    Args:
        read_fd: file descriptor of the pipe from which the watching thread reads.
        signal_time: time of the signal, by `time.monotonic`.
        n_seconds: seconds after the signal.
    """
    while select.select([read_fd], [], [], max(0.0, signal_time + n_seconds - time.monotonic()))[0]:
        if _END_BYTE in os.read(read_fd, 64):
            return True
    return False


def agree_on_safe_point(
    processes: ProcessGroup, signal_number: int | None, is_due: bool, metrics_digest: str
) -> tuple[int | None, bool]:
    """Return the common decision of all processes of a run at a safe point.

    Args:
        processes: processes that compute the run together.
        signal_number: signal that this process got; None without one.
        is_due: whether the checkpoint timer of this process requests a save.
        metrics_digest: digest of the metrics that this process has logged.

    Returns:
        The signal that stops all processes, None without one; and whether to save. They save if any process got a
        signal, or if `is_due` in the first process.

    Raises:
        ProcessesError: the processes have logged different metrics.
    """
    process_states = processes.all_gather_object((signal_number, is_due, metrics_digest))
    if len({digest for _, _, digest in process_states}) > 1:
        raise ProcessesError(
            f"the {processes.world_size} processes of this run have logged different numbers, so they no longer "
            "compute the same run. Start them on machines with the same GPUs and the same versions of all packages"
        )
    signals = [number for number, _, _ in process_states if number is not None]
    return (signals[0] if signals else None), bool(signals) or process_states[0][1]
