"""Stopping safely: a signal sets a flag, the loop stops at its next safe point, and is interrupted if it gets to none.

A loop may wait for anything: a rollout, a model, a build, a library. So what is in its way is not asked to look at the
clock: a thread watches it from the signal on. After `GIVE_UP_S` an exception is raised in the main thread, wherever
that is, as a Ctrl-C would raise one. After `OVERDUE_S` the thread ends the process itself: the main thread is inside a
call of a library that no signal interrupts. Saving is never interrupted.

A process that computes several runs has one flag in its main thread, which the flags of the runs, in threads of their
own, follow. What is given up is what they wait for in the main thread; the last resort ends the process for all.

Worker processes: forked ones inherit these handlers but ignore the signals (the flag belongs to the process that made
it); spawned ones start with Python's own handlers and should ignore SIGINT and SIGUSR1/2 themselves, because a
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
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from llmrl.core.errors import ProcessesError

if TYPE_CHECKING:
    from llmrl.core.processes import Processes

log = logging.getLogger(__name__)

SIGNALS = tuple(name for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C; the scheduler's last word; its early warnings before a time limit or preemption; the terminal is gone."""


GIVE_UP_S = 8.0
"""Seconds after a signal at which the work since the last safe point is given up, if no other was reached by then."""
GIVE_UP_AGAIN_S = 12.0
"""The same once more, where something has swallowed the exception, or was saving then."""
OVERDUE_S = 16.0
"""Seconds after a signal at which a main thread that cannot be interrupted is ended with its process."""
PROMISED_S = 20
"""Seconds in which a run that was told to stop is gone; SLURM kills 30 s (KillWait) after SIGTERM."""

_SAVING_POLL_S = 0.5
_HANDLED_S = 1.0
"""Seconds in which a main thread that can be interrupted has handled a signal."""
_OVER = 0
"""What the watching thread is told at the end, in place of the number of a signal."""

_watching = 0  # flags of this process that have a watching thread


def _leave_to_the_parent() -> None:
    """In a forked child: what it is signalled is no news of the process that it was copied from."""
    if _watching:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_leave_to_the_parent)


class Stopped(BaseException):  # it is an outcome, not an error, and no library is to take it for one
    """The run stopped because a signal asked it to; the same command goes on from its newest checkpoint.

    Args:
        folder: of the run.
        signal_number: that asked.
        kept: how much of the work is saved, in words.
        together: all processes of the run stop at this point.
    """

    def __init__(
        self, folder: Path, signal_number: int, kept: str = "everything is saved", together: bool = True
    ) -> None:
        self.signal, self.together = signal_number, together
        self.exit_code = 128 + signal_number
        self.brief = f"stopped by {signal.Signals(signal_number).name}; {kept}"
        super().__init__(f"{self.brief}. Repeat the same command to resume {folder}")

    @property
    def state(self) -> Literal["stopped", "preempted"]:
        """What the run's status says: a user has ended it, or a machine."""
        return "stopped" if self.signal == signal.SIGINT else "preempted"


class GivenUp(Stopped):
    """All that the main thread computes for several runs is given up. Each says for itself what of it is kept.

    Args:
        signal_number: that asked.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(Path(), signal_number, "the work of all runs of this process is given up", together=False)


_leader: ContextVar[StopFlag | None] = ContextVar("llmrl_stop", default=None)
"""The flag of the main thread that flags of this thread follow."""


class StopFlag:
    """While entered, the first of `SIGNALS` sets `requested`; a second Ctrl-C interrupts at once, but never a save.

    Outside the main thread, where Python delivers no signals, it follows the flag that `lead` has named, which has to
    be entered; where none has, it does nothing.

    Args:
        says: what the first signal prints, after its name; empty: somebody else says what is going on.
        give_up: makes what is raised in the main thread `GIVE_UP_S` after the signal; None: nothing is.
        overdue: called in another thread `OVERDUE_S` after the signal, if this is entered still, before the process
            ends.
    """

    def __init__(
        self,
        says: str = "",
        give_up: Callable[[], BaseException] | None = None,
        overdue: Callable[[], None] = lambda: None,
    ) -> None:
        self._says, self._give_up, self._overdue = says, give_up, overdue
        self.signal: int | None = None
        self._since = 0.0
        self._pid = os.getpid()
        self._previous: dict[int, Any] = {}
        self._saving = 0
        self._interrupt_after_saving = False
        self._said = False
        self._leader: StopFlag | None = None
        self._followers: tuple[StopFlag, ...] = ()
        self._following = threading.Lock()
        self._giving_up = False  # the watching thread asks for it
        # Where that thread is told, a pipe. Python's own handler in C writes there, whatever the main thread is at.
        self._news: int | None = None
        self._previous_news = -1

    @property
    def requested(self) -> bool:
        """Whether the loop should stop at its next safe point."""
        return self.signal is not None

    @property
    def waiting_s(self) -> float:
        """How long ago the first signal came, seconds; 0 if none has."""
        return 0.0 if self.signal is None else time.monotonic() - self._since

    @property
    def name(self) -> str:
        """The signal that asked for it, e.g. `SIGTERM`; empty if none has."""
        return "" if self.signal is None else signal.Signals(self.signal).name

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is not threading.main_thread():
            if (leader := _leader.get()) is not None:
                leader._take(self)
                return self
            log.warning("not in the main thread: this run cannot be stopped safely by signals")
            return self
        global _watching
        if self._give_up is not None:
            _watching += 1
            news, self._news = os.pipe()
            os.set_blocking(self._news, False)
            self._previous_news = signal.set_wakeup_fd(self._news, warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(news,), name="llmrl-stop", daemon=True).start()
        for name in SIGNALS:
            number = getattr(signal, name)
            if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                continue  # under nohup
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        global _watching
        if self._leader is not None:
            self._leader._let_go(self)
            self._leader = None
            return
        self._giving_up = False
        outer: StopFlag | None = None
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
            owner = getattr(handler, "__self__", None)
            outer = owner if isinstance(owner, StopFlag) else outer
        self._previous.clear()
        if self._news is not None:
            _watching -= 1
            signal.set_wakeup_fd(self._previous_news, warn_on_full_buffer=False)
            os.write(self._news, bytes([_OVER]))
            os.close(self._news)
            self._news = None
        if outer is not None and self.signal is not None and outer.signal is None:
            outer._said = self._said
            outer._begin(self.signal, self._since)  # it was meant for all that is going on
            if outer._news is not None:
                os.write(outer._news, bytes([self.signal]))

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around a save: an interrupt waits until it is done."""
        # Interrupted is the main thread, which may save for a run of another one.
        main = threading.current_thread() is threading.main_thread()
        flag = self._leader if self._leader is not None and main else self
        flag._saving += 1
        try:
            yield
        finally:
            flag._saving -= 1
        if flag._interrupt_after_saving and not flag._saving:
            raise KeyboardInterrupt

    def lead(self) -> None:
        """Let flags that are entered in this thread from now on, which is not the main one, follow this one."""
        _leader.set(self)

    def _take(self, follower: StopFlag) -> None:
        follower._leader, follower._said = self, True
        with self._following:
            self._followers = (*self._followers, follower)
        if self.signal is not None:  # a signal that comes now finds it among the followers
            follower._begin(self.signal, self._since)

    def _let_go(self, follower: StopFlag) -> None:
        with self._following:
            self._followers = tuple(each for each in self._followers if each is not follower)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return
        first = self.signal is None
        if first:
            self._begin(number, time.monotonic())
        if self._giving_up:
            self._giving_up = False
            if self._give_up is not None and not self._saving:
                raise self._give_up()
        elif number == signal.SIGINT and not first:
            if not self._saving:
                raise KeyboardInterrupt
            self._interrupt_after_saving = True
            self._say("stopping when the checkpoint is saved")

    def _begin(self, number: int, since: float) -> None:
        self.signal, self._since = number, since
        for follower in self._followers:
            follower._begin(number, since)
        if self._says and not self._said:
            self._said = True
            self._say(self._says)

    def _watch(self, news: int) -> None:
        """The watching thread: sleep until a signal has come, then see that the end does."""
        ours = {getattr(signal, name) for name in SIGNALS}
        try:
            while not (came := ours.intersection(told := os.read(news, 64))):
                if _OVER in told:
                    return
            number, since = came.pop(), time.monotonic()

            def over(after: float) -> bool:
                """Wait until so long after the signal; whether there is nothing to watch any more."""
                while select.select([news], [], [], max(0.0, since + after - time.monotonic()))[0]:
                    if _OVER in os.read(news, 64):
                        return True
                return False

            if over(min(_HANDLED_S, GIVE_UP_S)):
                return
            if self.signal is None and self._says:
                self._said = True
                self._say(self._says, number)
            for after in (GIVE_UP_S, GIVE_UP_AGAIN_S):
                if over(after):
                    return
                if not self._saving:
                    self._giving_up = True
                    main = threading.main_thread().ident
                    assert main is not None
                    # To that thread, so that a call of the system in which it waits is interrupted.
                    signal.pthread_kill(main, number)
            after = OVERDUE_S
            while not over(after):
                if not self._anybody_saves:
                    self._said = True
                    self._begin(number if self.signal is None else self.signal, since)
                    # Those that others wait for last.
                    for follower in reversed(self._followers):
                        follower._overdue()
                    self._overdue()
                    assert self.signal is not None
                    os._exit(128 + self.signal)
                while self._anybody_saves and not over(time.monotonic() - since + _SAVING_POLL_S):
                    pass
                # Whoever has just saved is about to end by itself.
                after = time.monotonic() - since + OVERDUE_S - GIVE_UP_AGAIN_S
        finally:
            os.close(news)

    @property
    def _anybody_saves(self) -> bool:
        return bool(self._saving) or any(follower._saving for follower in self._followers)

    def _say(self, text: str, number: int | None = None) -> None:
        # Not through logging or sys.stderr: the signal may have come in the middle of one of their writes.
        name = self.name if number is None else signal.Signals(number).name
        os.write(2, f"\n{name}: {text}\n".encode())


def agreed(processes: Processes, signal_number: int | None, due: bool, digest: int) -> tuple[int | None, bool]:
    """What all processes of a run do at a safe point: the signal that stops them, if one of them was sent any, and
    whether to save, which the clock of the first decides, or the signal.

    Raises:
        ProcessesError: they did not log the same numbers (`digest`).
    """
    everyone = processes.everyone((signal_number, due, digest))
    if len({logged for _, _, logged in everyone}) > 1:
        raise ProcessesError(
            f"the {processes.world_size} processes of this run have logged different numbers, so they no longer "
            "compute the same run: are they on machines, GPUs and versions of one kind?"
        )
    signals = [number for number, _, _ in everyone if number is not None]
    return (signals[0] if signals else None), bool(signals) or everyone[0][1]
