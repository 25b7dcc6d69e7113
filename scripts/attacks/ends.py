"""Termination of blocked runs: a run must exit within 20 s after a signal, with its state saved.

Each run is a separate process with a third-party environment that blocks, or a server that does not respond. The tests
use real time and take minutes.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from attack import attack, main, make_python_path

MAX_EXIT_SECONDS = 20.0
MAX_STARTUP_SECONDS = 240.0

PARTS = '''
import ctypes, os, time
from pathlib import Path
import gymnasium
from llmrl.envs.escape_room import EscapeRoom

class Stalling:
    """Environment mixin that blocks from step $STALL_AT on, as $STALL specifies, and creates the file `stalled`."""
    n_calls = 0

    def stall(self, method):
        if os.environ.get("STALL_PLACE", "step") != method or Path("no_stall").exists():
            return
        Stalling.n_calls += 1
        if Stalling.n_calls <= int(os.environ.get("STALL_AT", "0")):
            return
        Path("stalled").touch()
        kind = os.environ.get("STALL", "slow")
        if kind == "slow":
            time.sleep(0.5)
        elif kind == "wait":
            time.sleep(600)
        elif kind == "swallow":
            end = time.monotonic() + 600
            while time.monotonic() < end:
                try:
                    time.sleep(0.2)
                except BaseException:
                    pass
        elif kind == "deaf":
            library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
            library.pthread_mutex_lock(mutex)
            library.pthread_mutex_lock(mutex)
        elif kind == "busy":
            end = time.monotonic() + 600
            while time.monotonic() < end:
                sum(range(10000))

class SlowRoom(EscapeRoom, Stalling):
    def step(self, action):
        self.stall("step")
        return super().step(action)
    def reset(self, mask=None, seed=None):
        self.stall("build")
        return super().reset(mask=mask, seed=seed)
    def close(self):
        self.stall("close")
        return super().close()

class Slow(gymnasium.Env, Stalling):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        self.action_space = gymnasium.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample() * 0, {}
    def step(self, action):
        self.stall("step")
        self.t += 1
        return self.observation_space.sample() * 0, float(action), False, self.t >= 10, {}

gymnasium.register("Slow-v0", Slow, max_episode_steps=10)
'''

ROOM = ("env=escape_room", "env._target_=slow_parts.SlowRoom", "trusted_modules=[slow_parts]", "env.n_envs=4")
LEARN = (*ROOM, "learn.rollout_steps=200", "learn.env_steps=4000", "learn.evaluate_episodes=800")
DESIGN = (*ROOM, "principal=random", "design.steps=2", "design.adapt_rounds=2", "design.references=0")
DESIGN += ("design.validate_episodes=100",)
SLOW_GYM = ("env=gymnasium", "env.id=slow_parts:Slow-v0", "trusted_modules=[slow_parts]")
MODEL = ("llm=openai_compatible", "llm.model=fake-model", "llm.api_key_env=null")


class UnresponsiveServer:
    """Server that accepts chat requests without responding.

    Args:
        models: whether requests for the list of models are answered.
        trickles: whether the server sends one byte per second instead of nothing.
    """

    def __init__(self, models: bool = True, trickles: bool = False) -> None:
        self.models, self.trickles, self.n_requests = models, trickles, 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            self.connections.append(connection)
            threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        request = b""
        while chunk := connection.recv(65536):
            request += chunk
            if request.startswith(b"GET") and request.endswith(b"\r\n\r\n"):
                if self.models:
                    body = b'{"data": [{"id": "fake-model"}]}'
                    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                    connection.sendall(head.encode() + body)
                else:
                    self.n_requests += 1
                request = b""
            elif request.startswith(b"POST"):
                self.n_requests += 1
                request = b""
                while self.trickles:
                    time.sleep(1)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" if not request else b" ")
                    request = b" "


class SignaledProcess:
    """Process that was started and then signaled to stop.

    Args:
        folder: working directory.
        overrides: command-line arguments.
        ready: function that returns whether to send the signal; by default, whether the environment blocks.
        number: signal.
        twice: whether the signal is sent again after one second.
        program: arguments of Python before the overrides.
        after: time between readiness and the signal, seconds.
        environment: environment variables.
    """

    def __init__(
        self,
        folder: Path,
        *overrides: str,
        ready: object = None,
        number: signal.Signals = signal.SIGTERM,
        twice: bool = False,
        program: tuple[str, ...] = ("-m", "llmrl.cli.train"),
        after: float = 1.0,
        **environment: str,
    ) -> None:
        (folder / "slow_parts.py").write_text(PARTS)
        self.folder, self.number = folder, number
        self.command = [sys.executable, *program, *overrides]
        self.environment = {**os.environ, "PYTHONPATH": make_python_path(folder), "OMP_NUM_THREADS": "1"} | environment
        ready = ready or (lambda: (folder / "stalled").exists())
        with (folder / "output").open("w") as output_file:
            process = subprocess.Popen(
                self.command,
                cwd=folder,
                env=self.environment,
                stdout=output_file,
                stderr=output_file,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
            deadline = time.monotonic() + MAX_STARTUP_SECONDS
            while not ready() and process.poll() is None and time.monotonic() < deadline:  # type: ignore[operator]
                time.sleep(0.1)
            time.sleep(after)
            self.was_early = process.poll() is not None or time.monotonic() > deadline
            start = time.monotonic()
            process.send_signal(number)
            if twice:
                time.sleep(1.0)
                process.send_signal(number)
            try:
                process.wait(80)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.seconds = time.monotonic() - start
        self.code, self.output = process.returncode, (folder / "output").read_text()
        self.states = {
            json.loads(path.read_text())["state"] for path in folder.rglob("status.json") if "backup" not in str(path)
        }
        self.owner_files = list(folder.rglob("owner.json"))

    def check(
        self, max_seconds: float = MAX_EXIT_SECONDS, code: int | None = None, states: tuple[str, ...] | None = None
    ):
        """Return whether the process exited as expected, and a description of its exit."""
        messages = re.findall(r"(?m)^SIG[A-Z0-9]+: .*$", self.output)
        expected_states = {"stopped"} if self.number == signal.SIGINT else {"preempted"}
        passed = (
            not self.was_early
            and self.seconds < max_seconds
            and self.code == (128 + self.number if code is None else code)
            and self.states == (expected_states if states is None else set(states))
            and not self.owner_files
            and len(messages) <= 1
            and "Traceback" not in self.output
        )
        reasons = re.findall(r"stopped by [^.\n]*", self.output)
        states_text = "/".join(sorted(self.states)) or "no status"
        description = f"exited after {self.seconds:.1f} s, code {self.code}, {states_text}"
        warning = "EXITED OR TIMED OUT BEFORE THE SIGNAL; " if self.was_early else ""
        reason = reasons[-1] if reasons else self.output[-200:]
        return passed, f"{warning}{description}, {len(messages)} message(s); {reason}"

    def can_resume(self) -> bool:
        """Return whether the same command finishes the run if the environment does not block."""
        (self.folder / "no_stall").touch()
        process = subprocess.run(self.command, cwd=self.folder, env=self.environment, capture_output=True, timeout=300)
        states = {json.loads(path.read_text())["state"] for path in self.folder.rglob("status.json")}
        return process.returncode == 0 and states == {"finished"}


def check_with_resume(process: SignaledProcess):
    """Check the exit of a process, and that the run can be resumed."""
    passed, observed = process.check()
    can_resume = process.can_resume()
    return passed and can_resume, f"{observed}; {'resumes and finishes' if can_resume else 'DOES NOT RESUME'}"


EXPECTED = "exits within 20 s with 128 + signal, releases the folder, prints one message"


@attack("learn, a rollout of 200 steps of 0.5 s, SIGTERM", EXPECTED + ", resumes")
def _(folder: Path):
    return check_with_resume(SignaledProcess(folder, *LEARN, STALL_AT="300"))


@attack("learn, a step that blocks, Ctrl-C", EXPECTED)
def _(folder: Path):
    return SignaledProcess(folder, *LEARN, number=signal.SIGINT, STALL="wait", STALL_AT="50").check()


@attack("learn, the last evaluation, SIGUSR2", EXPECTED)
def _(folder: Path):
    return SignaledProcess(folder, *LEARN, number=signal.SIGUSR2, STALL_AT="1005").check()


@attack("learn, a reset that blocks, SIGTERM", EXPECTED)
def _(folder: Path):
    return SignaledProcess(folder, *LEARN, STALL="wait", STALL_PLACE="build").check()


@attack("learn, a close that blocks, SIGTERM", EXPECTED)
def _(folder: Path):
    return SignaledProcess(folder, *LEARN, STALL="wait", STALL_PLACE="close").check()


@attack("learn, an environment that catches all exceptions", EXPECTED)
def _(folder: Path):
    return SignaledProcess(folder, *LEARN, STALL="swallow", STALL_AT="300").check()


@attack("learn, a library that blocks signals (a locked mutex)", EXPECTED + ", resumes")
def _(folder: Path):
    return check_with_resume(SignaledProcess(folder, *LEARN, STALL="deaf", STALL_AT="300"))


@attack("learn, an infinite computation, SIGUSR1", EXPECTED)
def _(folder: Path):
    return SignaledProcess(folder, *LEARN, number=signal.SIGUSR1, STALL="busy", STALL_AT="300").check()


@attack("learn, Ctrl-C twice", "exits immediately with 130, stopped")
def _(folder: Path):
    process = SignaledProcess(folder, *LEARN, number=signal.SIGINT, twice=True, STALL="wait", STALL_AT="300")
    return process.check(max_seconds=8.0)


@attack("design, adaptation, SIGTERM", EXPECTED + ", resumes")
def _(folder: Path):
    return check_with_resume(SignaledProcess(folder, *DESIGN, STALL_AT="2"))


@attack("design, validation of 125 steps of 0.5 s, Ctrl-C", EXPECTED)
def _(folder: Path):
    return SignaledProcess(folder, *DESIGN, number=signal.SIGINT, STALL_AT="30").check()


@attack("design, computation of reference lines", EXPECTED)
def _(folder: Path):
    return SignaledProcess(folder, *DESIGN, "design.references=1", STALL="wait", STALL_AT="40").check()


@attack("play, a step that blocks", EXPECTED + ", resumes")
def _(folder: Path):
    overrides = (*ROOM, "agent=random", "play.episodes=40")
    return check_with_resume(SignaledProcess(folder, *overrides, STALL="wait", STALL_AT="12"))


SEARCH = (*SLOW_GYM, "agent=linear", "principal=random", "search.iterations=3", "search.episodes=50")


@attack("search, episodes in worker processes", EXPECTED)
def _(folder: Path):
    return SignaledProcess(folder, *SEARCH, "hardware.cores=2", STALL="slow", STALL_AT="20").check()


@attack("search, episodes in this process", EXPECTED)
def _(folder: Path):
    return SignaledProcess(folder, *SEARCH, "hardware.cores=1", STALL="slow", STALL_AT="20").check()


@attack("a baseline of Stable-Baselines3, in its training loop", EXPECTED)
def _(folder: Path):
    overrides = (*SLOW_GYM, "agent=sb3", "search.iterations=3", "search.episodes=50", "search.confirm_candidates=0")
    return SignaledProcess(folder, *overrides, STALL="wait", STALL_AT="20").check()


PRINCIPAL = ("env=escape_room", "principal=llm", "design.steps=2", "design.references=0")
PLAYERS = ("env=taxi", "env.horizon=10", "env.n_envs=8", "agent=llm_player", "play.episodes=8")
TEACHER = ("env=simple_doorkey", "env.n_envs=4", "agent=student_mlp", "teacher=llm", "env.horizon=8")


def signal_waiting_run(folder: Path, server: UnresponsiveServer, *overrides: str, **options: object) -> SignaledProcess:
    """Run an experiment with an unresponsive model, and signal it after the given number of requests."""
    n_requests = int(options.pop("n_requests", 1))  # type: ignore[call-overload]
    model_overrides = (*MODEL, f"llm.base_url={server.url}", f"llm.cache_dir={folder / 'cache'}", "llm.timeout=120")
    command = (*overrides, *model_overrides)
    return SignaledProcess(folder, *command, ready=lambda: server.n_requests >= n_requests, **options)  # type: ignore[arg-type]


def check_with_calls(process: SignaledProcess, n: int):
    """Check the exit of a process, and that the call log records `n` calls as spent."""
    passed, observed = process.check()
    rows = [json.loads(row) for path in process.folder.rglob("llm_calls.jsonl") for row in path.open()]
    spent = max((row["spent"]["calls"] + row["spent"]["unsettled"] for row in rows if "spent" in row), default=0)
    return passed and spent == n, f"{spent} call(s) counted; {observed}"


@attack("a principal whose model does not respond, SIGTERM", EXPECTED + ", 1 call counted")
def _(folder: Path):
    return check_with_calls(signal_waiting_run(folder, UnresponsiveServer(), *PRINCIPAL), 1)


@attack("eight players, four concurrent requests without responses, Ctrl-C", EXPECTED + ", 4 counted")
def _(folder: Path):
    process = signal_waiting_run(folder, UnresponsiveServer(), *PLAYERS, n_requests=4, number=signal.SIGINT)
    return check_with_calls(process, 4)


@attack("a teacher whose model sends one byte per second, SIGTERM", EXPECTED)
def _(folder: Path):
    return signal_waiting_run(folder, UnresponsiveServer(trickles=True), *TEACHER).check()


@attack("a server that does not list its models, before the run is created, SIGTERM", "exits immediately, no folder")
def _(folder: Path):
    return signal_waiting_run(folder, UnresponsiveServer(models=False), "env=escape_room", "principal=llm").check(
        max_seconds=5.0, code=-signal.SIGTERM, states=()
    )


@attack("the local launcher with two blocked runs, Ctrl-C", "all processes exit within 25 s, both runs stopped")
def _(folder: Path):
    overrides = ("--multirun", *LEARN, "seed=0,1", "hardware.cores=1")
    process = SignaledProcess(folder, *overrides, number=signal.SIGINT, STALL="wait", STALL_AT="50", after=6.0)
    return process.check(max_seconds=25.0, code=130)


@attack("llmrl-evaluate with a player whose model does not respond, SIGTERM", "exits within 20 s with 143")
def _(folder: Path):
    command = [sys.executable, "-m", "llmrl.cli.train", "env=taxi", "env.horizon=3", "env.n_envs=2", "play.episodes=2"]
    command += ["agent=llm_player", "llm=scripted"]
    subprocess.run(command, cwd=folder, capture_output=True, timeout=200, check=True)
    [run] = [path.parent for path in folder.rglob("config.yaml")]
    server = UnresponsiveServer()
    config = (run / "config.yaml").read_text()
    start = config.index("llm:\n")
    end = start + re.search(r"\n(?=[a-z])", config[start:]).end()  # type: ignore[union-attr]
    keys = ("cache", "cache_dir", "share_cache", "failures", "retry", "limits", "budget")
    policy_keys = re.findall(rf"(?m)^  (?:{'|'.join(keys)}):.*\n(?:    .*\n)*", config[start:end])
    target = "llmrl.llms.openai_compatible.OpenAICompatibleChat"
    model_overrides = f"llm:\n  _target_: {target}\n  base_url: {server.url}\n  model: fake\n"
    (run / "config.yaml").write_text(config[:start] + model_overrides + "".join(policy_keys) + config[end:])
    program = ("-c", "from llmrl.cli.evaluate import main; main()", str(run), "--seed", "5")
    process = SignaledProcess(folder, program=program, ready=lambda: server.n_requests >= 2)
    return process.check(states=("finished",))


LONG_RUN = ("env=escape_room", "agent=random", "principal=random", "design.steps=100000", "env.n_envs=2")
LONG_RUN += ("design.adapt_rounds=0", "design.validate_episodes=2", "design.references=0")


for after in (0.2, 0.4, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0):

    @attack(f"Ctrl-C {after} s after the start of llmrl-train", "130, at most one message, no traceback")
    def _(folder: Path, after: float = after):
        process = SignaledProcess(folder, *LONG_RUN, ready=lambda: True, number=signal.SIGINT, after=after)
        has_clean_exit = "Traceback" not in process.output and not process.owner_files
        passed = process.code == 130 and has_clean_exit and process.seconds < MAX_EXIT_SECONDS
        output = " / ".join(process.output.split("\n"))[-100:]
        return passed, f"code {process.code} after {process.seconds:.1f} s; {output}"


for after in (1.0, 3.0, 5.0, 8.0):

    @attack(f"Ctrl-C for all processes {after} s after the start of a sweep", "130, no traceback")
    def _(folder: Path, after: float = after):
        with (folder / "output").open("w") as output_file:
            process = subprocess.Popen(
                [sys.executable, "-m", "llmrl.cli.train", "--multirun", *LONG_RUN, "seed=0,1"],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=output_file,
                stderr=output_file,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
            time.sleep(after)
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(60)
        text = (folder / "output").read_text()
        return code == 130 and "Traceback" not in text, f"code {code}; {text.strip()[-100:]}"


if __name__ == "__main__":
    main("Termination of blocked runs")
