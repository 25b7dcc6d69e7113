"""Runs that are busy with what never ends are told to stop: each is to be gone within 20 s, with its work saved.

Every run is a process as a user starts it, with a game of a third party that comes to a standstill, or a server that
never answers. Times are real, so the whole takes minutes.
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

from attack import attack, main, path_with

PROMISED_S = 20.0
STARTS_S = 240.0

PARTS = '''
import ctypes, os, time
from pathlib import Path
import gymnasium
from llmrl.envs.escape_room import EscapeRoom

class Stalling:
    """From step $STALL_AT on, steps take what $STALL says; the file `stalled` tells that it has come to that."""
    taken = 0

    def stall(self, place):
        if os.environ.get("STALL_PLACE", "step") != place or Path("no_stall").exists():
            return
        Stalling.taken += 1
        if Stalling.taken <= int(os.environ.get("STALL_AT", "0")):
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


class Deaf:
    """A server that takes requests to chat and never answers, or trickles; a list of models it gives, or not."""

    def __init__(self, models: bool = True, trickles: bool = False) -> None:
        self.models, self.trickles, self.asked = models, trickles, 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"
        self.links: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            link, _ = self.listener.accept()
            self.links.append(link)
            threading.Thread(target=self._talk, args=(link,), daemon=True).start()

    def _talk(self, link: socket.socket) -> None:
        said = b""
        while chunk := link.recv(65536):
            said += chunk
            if said.startswith(b"GET") and said.endswith(b"\r\n\r\n"):
                if self.models:
                    body = b'{"data": [{"id": "fake-model"}]}'
                    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                    link.sendall(head.encode() + body)
                else:
                    self.asked += 1
                said = b""
            elif said.startswith(b"POST"):
                self.asked += 1
                said = b""
                while self.trickles:
                    time.sleep(1)
                    link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" if not said else b" ")
                    said = b" "


class Ended:
    """The end of a process that was signaled to stop."""

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
        self.environment = {**os.environ, "PYTHONPATH": path_with(folder), "OMP_NUM_THREADS": "1"} | environment
        ready = ready or (lambda: (folder / "stalled").exists())
        with (folder / "said").open("w") as said:
            process = subprocess.Popen(
                self.command,
                cwd=folder,
                env=self.environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
            until = time.monotonic() + STARTS_S
            while not ready() and process.poll() is None and time.monotonic() < until:  # type: ignore[operator]
                time.sleep(0.1)
            time.sleep(after)
            self.early = process.poll() is not None or time.monotonic() > until
            begun = time.monotonic()
            process.send_signal(number)
            if twice:
                time.sleep(1.0)
                process.send_signal(number)
            try:
                process.wait(80)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.seconds = time.monotonic() - begun
        self.code, self.said = process.returncode, (folder / "said").read_text()
        self.states = {
            json.loads(path.read_text())["state"] for path in folder.rglob("status.json") if "backup" not in str(path)
        }
        self.owned = list(folder.rglob("owner.json"))

    def verdict(self, within: float = PROMISED_S, code: int | None = None, states: tuple[str, ...] | None = None):
        """Return whether the process ended as expected, and a description of its end."""
        messages = re.findall(r"(?m)^SIG[A-Z0-9]+: .*$", self.said)
        wanted = {"stopped"} if self.number == signal.SIGINT else {"preempted"}
        held = (
            not self.early
            and self.seconds < within
            and self.code == (128 + self.number if code is None else code)
            and self.states == (wanted if states is None else set(states))
            and not self.owned
            and len(messages) <= 1
            and "Traceback" not in self.said
        )
        told = re.findall(r"stopped by [^.\n]*", self.said)
        words = f"gone after {self.seconds:.1f} s, code {self.code}, {'/'.join(sorted(self.states)) or 'no status'}"
        early = "NOT IN TIME FOR THE SIGNAL; " if self.early else ""
        return held, f"{early}{words}, {len(messages)} message(s); {told[-1] if told else self.said[-200:]}"

    def resumed(self) -> bool:
        """Return whether the same command, with nothing that stalls, finishes the run."""
        (self.folder / "no_stall").touch()
        again = subprocess.run(self.command, cwd=self.folder, env=self.environment, capture_output=True, timeout=300)
        states = {json.loads(path.read_text())["state"] for path in self.folder.rglob("status.json")}
        return again.returncode == 0 and states == {"finished"}


def and_resumed(ended: Ended):
    held, seen = ended.verdict()
    resumed = ended.resumed()
    return held and resumed, f"{seen}; {'goes on to its end' if resumed else 'DOES NOT GO ON'}"


GONE = "gone within 20 s, 128 + signal, free folder, one message"


@attack("learn, a rollout of 200 steps of 0.5 s, SIGTERM", GONE + ", goes on")
def _(folder: Path):
    return and_resumed(Ended(folder, *LEARN, STALL_AT="300"))


@attack("learn, a step that waits for ever, Ctrl-C", GONE)
def _(folder: Path):
    return Ended(folder, *LEARN, number=signal.SIGINT, STALL="wait", STALL_AT="50").verdict()


@attack("learn, the last evaluation, SIGUSR2", GONE)
def _(folder: Path):
    return Ended(folder, *LEARN, number=signal.SIGUSR2, STALL_AT="1005").verdict()


@attack("learn, a build that waits, SIGTERM", GONE)
def _(folder: Path):
    return Ended(folder, *LEARN, STALL="wait", STALL_PLACE="build").verdict()


@attack("learn, a game that never closes, SIGTERM in its last moment", GONE)
def _(folder: Path):
    return Ended(folder, *LEARN, STALL="wait", STALL_PLACE="close").verdict()


@attack("learn, a game that swallows every exception", GONE)
def _(folder: Path):
    return Ended(folder, *LEARN, STALL="swallow", STALL_AT="300").verdict()


@attack("learn, a library deaf to signals (a mutex that is never free)", GONE + ", goes on")
def _(folder: Path):
    return and_resumed(Ended(folder, *LEARN, STALL="deaf", STALL_AT="300"))


@attack("learn, a game that computes for ever, SIGUSR1", GONE)
def _(folder: Path):
    return Ended(folder, *LEARN, number=signal.SIGUSR1, STALL="busy", STALL_AT="300").verdict()


@attack("learn, Ctrl-C twice", "at once, 130, stopped")
def _(folder: Path):
    ended = Ended(folder, *LEARN, number=signal.SIGINT, twice=True, STALL="wait", STALL_AT="300")
    return ended.verdict(within=8.0)


@attack("design, adaptation, SIGTERM", GONE + ", goes on")
def _(folder: Path):
    return and_resumed(Ended(folder, *DESIGN, STALL_AT="2"))


@attack("design, validation of 125 steps of 0.5 s, Ctrl-C", GONE)
def _(folder: Path):
    return Ended(folder, *DESIGN, number=signal.SIGINT, STALL_AT="30").verdict()


@attack("design, reference lines that are computed first", GONE)
def _(folder: Path):
    return Ended(folder, *DESIGN, "design.references=1", STALL="wait", STALL_AT="40").verdict()


@attack("play, a step that waits", GONE + ", goes on")
def _(folder: Path):
    overrides = (*ROOM, "agent=random", "play.episodes=40")
    return and_resumed(Ended(folder, *overrides, STALL="wait", STALL_AT="12"))


SEARCH = (*SLOW_GYM, "agent=linear", "principal=random", "search.iterations=3", "search.episodes=50")


@attack("search, episodes in worker processes", GONE)
def _(folder: Path):
    return Ended(folder, *SEARCH, "hardware.cores=2", STALL="slow", STALL_AT="20").verdict()


@attack("search, episodes in this process", GONE)
def _(folder: Path):
    return Ended(folder, *SEARCH, "hardware.cores=1", STALL="slow", STALL_AT="20").verdict()


@attack("a baseline of Stable-Baselines3, in the middle of its own loop", GONE)
def _(folder: Path):
    overrides = (*SLOW_GYM, "agent=sb3", "search.iterations=3", "search.episodes=50", "search.race=0")
    return Ended(folder, *overrides, STALL="wait", STALL_AT="20").verdict()


PRINCIPAL = ("env=escape_room", "principal=llm", "design.steps=2", "design.references=0")
PLAYERS = ("env=taxi", "env.horizon=10", "env.n_envs=8", "agent=llm_player", "play.episodes=8")
TAUGHT = ("env=simple_doorkey", "env.n_envs=4", "agent=student_mlp", "teacher=llm", "env.horizon=8")


def waiting(folder: Path, server: Deaf, *overrides: str, **options: object) -> Ended:
    asked = int(options.pop("asked", 1))  # type: ignore[call-overload]
    own = (*MODEL, f"llm.base_url={server.url}", f"llm.cache_dir={folder / 'cache'}", "llm.timeout=120")
    return Ended(folder, *overrides, *own, ready=lambda: server.asked >= asked, **options)  # type: ignore[arg-type]


def counted(ended: Ended, n: int):
    """Return a verdict on whether the ledger records `n` calls as spent."""
    held, seen = ended.verdict()
    lines = [json.loads(line) for path in ended.folder.rglob("llm_calls.jsonl") for line in path.open()]
    spent = max((line["spent"]["calls"] + line["spent"]["unsettled"] for line in lines if "spent" in line), default=0)
    return held and spent == n, f"{spent} call(s) counted; {seen}"


@attack("a principal whose model never answers, SIGTERM", GONE + ", 1 call counted")
def _(folder: Path):
    return counted(waiting(folder, Deaf(), *PRINCIPAL), 1)


@attack("eight players, four requests at once that are never answered, Ctrl-C", GONE + ", 4 counted")
def _(folder: Path):
    return counted(waiting(folder, Deaf(), *PLAYERS, asked=4, number=signal.SIGINT), 4)


@attack("a teacher whose model trickles, SIGTERM", GONE)
def _(folder: Path):
    return waiting(folder, Deaf(trickles=True), *TAUGHT).verdict()


@attack("a model that does not say what it serves, asked before there is a run, SIGTERM", "at once, no folder")
def _(folder: Path):
    return waiting(folder, Deaf(models=False), "env=escape_room", "principal=llm").verdict(
        within=5.0, code=-signal.SIGTERM, states=()
    )


@attack("the local launcher with two stalled runs, Ctrl-C", "all gone within 25 s, both stopped")
def _(folder: Path):
    overrides = ("--multirun", *LEARN, "seed=0,1", "hardware.cores=1")
    ended = Ended(folder, *overrides, number=signal.SIGINT, STALL="wait", STALL_AT="50", after=6.0)
    return ended.verdict(within=25.0, code=130)


@attack("llmrl-evaluate whose player's model never answers, SIGTERM", "gone within 20 s, 143")
def _(folder: Path):
    played = [sys.executable, "-m", "llmrl.cli.train", "env=taxi", "env.horizon=3", "env.n_envs=2", "play.episodes=2"]
    played += ["agent=llm_player", "llm=scripted"]
    subprocess.run(played, cwd=folder, capture_output=True, timeout=200, check=True)
    [run] = [path.parent for path in folder.rglob("config.yaml")]
    server = Deaf()
    config = (run / "config.yaml").read_text()
    start = config.index("llm:\n")
    end = start + re.search(r"\n(?=[a-z])", config[start:]).end()  # type: ignore[union-attr]
    keys = ("cache", "cache_dir", "share_cache", "failures", "retry", "limits", "budget")
    kept = re.findall(rf"(?m)^  (?:{'|'.join(keys)}):.*\n(?:    .*\n)*", config[start:end])
    target = "llmrl.llms.openai_compatible.OpenAICompatibleChat"
    own = f"llm:\n  _target_: {target}\n  base_url: {server.url}\n  model: fake\n"
    (run / "config.yaml").write_text(config[:start] + own + "".join(kept) + config[end:])
    program = ("-c", "from llmrl.cli.evaluate import main; main()", str(run), "--seed", "5")
    ended = Ended(folder, program=program, ready=lambda: server.asked >= 2)
    return ended.verdict(states=("finished",))


ROOMY = ("env=escape_room", "agent=random", "principal=random", "design.steps=100000", "env.n_envs=2")
ROOMY += ("design.adapt_rounds=0", "design.validate_episodes=2", "design.references=0")


for after in (0.2, 0.4, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0):

    @attack(f"Ctrl-C {after} s after the start of llmrl-train", "130, at most one message, no traceback")
    def _(folder: Path, after: float = after):
        ended = Ended(folder, *ROOMY, ready=lambda: True, number=signal.SIGINT, after=after)
        held = ended.code == 130 and "Traceback" not in ended.said and not ended.owned and ended.seconds < PROMISED_S
        return held, f"code {ended.code} after {ended.seconds:.1f} s; {' / '.join(ended.said.split(chr(10)))[-100:]}"


for after in (1.0, 3.0, 5.0, 8.0):

    @attack(f"Ctrl-C for all processes {after} s after the start of a sweep", "130, no traceback")
    def _(folder: Path, after: float = after):
        with (folder / "said").open("w") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "llmrl.cli.train", "--multirun", *ROOMY, "seed=0,1"],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
            time.sleep(after)
            os.killpg(process.pid, signal.SIGINT)
            code = process.wait(60)
        text = (folder / "said").read_text()
        return code == 130 and "Traceback" not in text, f"code {code}; {text.strip()[-100:]}"


if __name__ == "__main__":
    main("Stop means stop")
