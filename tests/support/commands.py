"""Commands for tests, forked from a server process that has imported their modules.

`Popen` and `run` have the interface of `subprocess`. A command shares no state with the test, because the server is a
separate program. A forked command gets the arguments, environment, working directory, streams and umask of the call, a
new session, Python's default signal handlers and a new `__main__`, and it exits like an interpreter.

Use `subprocess` in tests of imports or of an installed package, which need a new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

PRELOADED_MODULES = (
    "gymnasium",
    "hydra._internal.hydra",
    "hydra.main",
    "imageio.v3",
    "json_repair",
    "llmrl.agents.llm_player.agent",
    "llmrl.agents.ppo_agent",
    "llmrl.analysis.report_files",
    "llmrl.config.hydra_hooks",
    "llmrl.display.results",
    "llmrl.experiment.composition",
    "llmrl.experiment.run_job",
    "llmrl.experiment.train_application",
    "llmrl.llms.transcript",
    "llmrl.loops.design",
    "llmrl.loops.learn",
    "llmrl.principals.llm_factory",
    "llmrl.run.distributed",
    "llmrl.run.run",
    "llmrl.run.sinks.tensorboard",
    "llmrl.sweeps.backends.local",
    "llmrl.sweeps.launch",
    "llmrl.sweeps.run_control",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "numba.np.linalg",
    "numpy.random",
    "pydantic.types",
    "rich._emoji_codes",
    "scipy.linalg",
    "tensorboard.plugins.hparams.summary_v2",
    "tensorboard.plugins.text.summary_v2",
    "tensorboard.summary.writer.record_writer",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.onnx",
    "torch.utils.serialization",
)
"""Modules that commands import. None of them starts a thread, opens a device or draws random numbers on import."""

STARTUP_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
"""Environment variables that the interpreter or a library reads at startup, in addition to PYTHON*."""

_ENVIRONMENT = dict(os.environ)  # environment of the server, before a test changes it
_MAX_REQUEST_BYTES = 1 << 18
_LOCK = threading.Lock()


class Popen(subprocess.Popen):
    """`subprocess.Popen` of a Python program that is forked from the server.

    `args` is `[python, "-m", module, ...]`, `[python, "-c", code, ...]`, `[python, file, ...]` or a console script.

    Raises:
        ValueError: the arguments require a new interpreter.
    """

    _reply: socket.socket | None = None

    def _execute_child(
        self,
        args,
        executable,
        preexec_fn,
        close_fds,
        pass_fds,
        cwd,
        env,
        startupinfo,
        creationflags,
        shell,
        p2cread,
        p2cwrite,
        c2pread,
        c2pwrite,
        errread,
        errwrite,
        restore_signals,
        gid,
        gids,
        uid,
        umask,
        start_new_session,
        process_group,
    ):
        """Send a request to the server instead of forking this process."""
        environment = dict(os.environ if env is None else env)
        differ = {name for name, _ in environment.items() ^ _ENVIRONMENT.items()}
        if startup_variables := [name for name in differ if name in STARTUP_VARIABLES or name.startswith("PYTHON")]:
            raise ValueError(f"{', '.join(startup_variables)}: read when a process starts; use subprocess")
        if isinstance(args, str) or shell or executable or preexec_fn or pass_fds or gid or gids or uid:
            raise ValueError("the server does not support these arguments; use subprocess")
        cwd = Path.cwd() if cwd is None else Path(os.fsdecode(cwd)).absolute()
        cwd.stat()  # raises the error that subprocess would raise
        if umask < 0:
            os.umask(umask := os.umask(0))
        request = {"args": [os.fsdecode(word) for word in args], "cwd": str(cwd), "env": environment, "umask": umask}
        streams = [number if fd == -1 else fd for number, fd in enumerate((p2cread, c2pwrite, errwrite))]
        self._reply, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with child_socket, _LOCK:
                socket.send_fds(_start_server(), [json.dumps(request).encode()], [*streams, child_socket.fileno()])
            self.pid = self._receive_number()
            self._child_created = True
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _receive_number(self) -> int:
        """Return the next number from the server: the process ID first, then the exit status."""
        assert self._reply is not None
        if not (message := self._reply.recv(32)):
            raise RuntimeError("the command server has exited")
        return int(message)

    def _try_wait(self, wait_flags):
        """Replace `os.waitpid`."""
        if self._reply is None or self._reply.fileno() < 0:
            raise RuntimeError("the exit status has been received already")
        if wait_flags & os.WNOHANG and not select.select([self._reply], [], [], 0)[0]:
            return 0, 0
        status = self._receive_number()
        self._reply.close()
        return self.pid, status

    def _internal_poll(self, _deadstate=None, **_):
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            except RuntimeError:
                if _deadstate is None:
                    raise
                self.returncode = _deadstate
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(
    args: Sequence[str | os.PathLike[str]],
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command like `subprocess.run`, with the `Popen` of this module."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(args, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class Process:
    """Function call in a new process, with the methods of `multiprocessing.Process` that tests need.

    Args:
        target: module-level function that is called with `args`; both are pickled.
    """

    def __init__(self, target: Callable[..., object], args: Sequence[object] = ()) -> None:
        self._call = pickle.dumps((target, tuple(args)))
        self._process: Popen | None = None

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def exitcode(self) -> int | None:
        """Exit code, negative for a signal number; None while the process runs."""
        return self._started.poll()

    @property
    def _started(self) -> Popen:
        assert self._process is not None, "the process has not been started"
        return self._process

    def start(self) -> None:
        code = f"import pickle, sys; sys.path[:] = {sys.path!r}; f, args = pickle.loads({self._call!r}); f(*args)"
        self._process = Popen([sys.executable, "-c", code])

    def join(self, timeout: float | None = None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._started.wait(timeout)

    def is_alive(self) -> bool:
        return self._started.poll() is None

    def kill(self) -> None:
        self._started.kill()


def start_ranks(args: Sequence[str], **environment: str) -> list[Popen]:
    """Start two processes of a command with the environment that torchrun sets, and return them by rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **environment}
    return [
        Popen(
            args,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]


@functools.cache
def _start_server() -> socket.socket:
    """Start the server and return its socket; closing the socket ends the server and its forked processes."""
    parent_socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
    with child_socket:
        command = [sys.executable, "-c", f"from {__name__} import serve; serve({PRELOADED_MODULES!r})"]
        subprocess.Popen(command, stdin=child_socket, env=_ENVIRONMENT, cwd="/", start_new_session=True)
    return parent_socket


def preload_modules(names: Sequence[str]) -> None:
    """Import modules and read the files that every command reads, before this process forks others.

    Raises:
        AssertionError: a module started a thread, which would not exist in forked processes.
    """
    for name in names:
        importlib.import_module(name)
    import hydra

    from kept_options import cache_options
    from llmrl.run import provenance

    provenance.compute_code_digest()
    provenance.get_package_versions()
    provenance.read_checkout_state()
    cache_options()
    with hydra.initialize_config_module("llmrl.conf", version_base="1.3"):
        hydra.compose("train")  # most of the files that any command reads
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, f"the preloaded modules started {len(threads) - 1} threads"
    gc.set_threshold(50_000, 10, 10)
    gc.freeze()  # otherwise garbage collection in forked processes writes to these objects and copies their pages


def get_forkserver_context() -> Any:
    """Return a `multiprocessing` context whose processes are forked from a server with the same preloaded modules."""
    import multiprocessing

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    return context


def serve(modules: Sequence[str]) -> None:
    """Run the server, whose standard input is the socket."""
    preload_modules(modules)
    control = socket.socket(fileno=0)
    read_end, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    replies: dict[int, socket.socket] = {}
    while True:
        ready = select.select([control, read_end], [], [])[0]
        if read_end in ready:
            os.read(read_end, 4096)
            while replies:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                with replies.pop(pid) as reply, contextlib.suppress(BrokenPipeError):
                    reply.send(str(status).encode())
        if control not in ready:
            continue
        message, fds, *_ = socket.recv_fds(control, _MAX_REQUEST_BYTES, 4)
        if not message:
            for pid in replies:
                os.kill(pid, signal.SIGKILL)
            raise SystemExit
        pid = os.fork()
        reply = socket.socket(fileno=fds.pop())
        if not pid:
            signal.set_wakeup_fd(-1)
            control.detach()
            for descriptor in (reply, *replies.values()):
                descriptor.close()
            os.close(read_end)
            os.close(wake)
            _run_and_exit(functools.partial(_execute_command, fds, **json.loads(message)))
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(BrokenPipeError):
            reply.send(str(pid).encode())
        replies[pid] = reply


def _run_and_exit(work: Callable[[], None]) -> NoReturn:
    """Call `work` and exit like an interpreter, without deallocating the imported modules."""
    code: object = 0
    try:
        work()
    except SystemExit as end:
        code = end.code
    except BaseException as error:  # noqa: BLE001 (any error ends this process)
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


def _execute_command(streams: Sequence[int], args: list[str], cwd: str, env: dict[str, str], umask: int) -> None:
    """Set up this forked process like a new interpreter and execute the program in `args`."""
    os.setsid()
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < signal.SIGRTMIN:
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.umask(umask)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    encoding, write_through = sys.stdout.encoding, sys.stdout.write_through
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    for number, name, errors in ((1, "stdout", sys.stdout.errors), (2, "stderr", "backslashreplace")):
        file = open(number, "wb", 0 if write_through else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(file, encoding, errors, "\n", number == 2 or os.isatty(number), write_through)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    import numpy

    numpy.random.seed()
    sys.orig_argv = args
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    words = args[1:] if Path(args[0]).name.startswith("python") else args
    if {"-m", "--multirun", "retry"}.intersection(words[1:]) and _prefork_server(args[0]):
        return
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], cwd
        runpy._run_module_as_main(words[1])
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), vars(main))
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
        main.__file__ = words[0]
        exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), vars(main))


def _prefork_server(python: str) -> bool:
    """Fork this process, which is about to launch a sweep, and return whether this is the child.

    The child waits until the launcher starts a fork server of `multiprocessing` and then acts as that server, because
    it has already imported the modules that the server would import. It returns when the server ends.
    """
    from multiprocessing import util

    parent_socket, child_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        child_socket.close()
        spawn = util.spawnv_passfds

        def request_fork_server(path: bytes, args: Sequence[Any], fds: Sequence[int]) -> int:
            code = os.fsdecode(args[-1])
            if not code.startswith("from multiprocessing.forkserver import main"):
                return spawn(path, args, fds)
            util.spawnv_passfds = spawn
            request = {"code": code, "fds": list(fds), "env": dict(os.environ), "cwd": str(Path.cwd())}
            with parent_socket:
                socket.send_fds(parent_socket, [json.dumps(request).encode()], list(fds))
            return pid

        util.spawnv_passfds = request_fork_server
        return False
    parent_socket.close()
    os.setpgid(0, 0)
    with child_socket:
        message, fds, *_ = socket.recv_fds(child_socket, _MAX_REQUEST_BYTES, 8)
    if not message:
        os._exit(0)  # the launcher started no fork server
    request = json.loads(message)
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD, 512) for fd in fds]
    for fd, number in zip(fds, request["fds"], strict=True):
        os.dup2(fd, number)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    exec(request["code"], {"__name__": "__main__"})
    return True
