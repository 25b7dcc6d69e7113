"""Injected faults and corrupted run folders: `python scripts/attacks/errors.py [words]`. About two minutes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from attack import attack, main, path_with

BIN = Path(sys.executable).parent
SMALL = (
    *("env=escape_room", "env.n_envs=2", "agent=random", "principal=random", "design.steps=3"),
    *("design.adapt_rounds=0", "design.validate_episodes=2", "design.references=0", "checkpoint_seconds=0"),
)
ENV = '''
"""A user's environment with a defect."""
import os
import numpy as np
from llmrl.envs.escape_room import EscapeRoom

class Mine(EscapeRoom):
    def reset(self, *a, **k):
        if os.environ.get("FAULT") == "reset":
            raise RuntimeError("half a\\nmessage")
        return super().reset(*a, **k)
    def step(self, *a, **k):
        if os.environ.get("FAULT") == "step":
            return np.zeros(3)[7]
        return super().step(*a, **k)
    def close(self):
        super().close()
        if os.environ.get("FAULT") == "close":
            raise OSError(5, "Input/output error")
'''


def plain(text: str) -> bool:
    """Return whether a message is one of llmrl's own and no traceback."""
    return "Traceback" not in text and "llmrl-" in text


def command(folder: Path, *arguments: str, name: str = "llmrl-train", **variables: str) -> tuple[int, str]:
    """Run a real command in a process of its own; return exit code and standard error."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path_with(folder), **variables}
    environment.pop("HYDRA_FULL_ERROR", None) if "HYDRA_FULL_ERROR" not in variables else None
    done = subprocess.run(
        [str(BIN / name), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=150
    )
    return done.returncode, done.stderr + (done.stdout if name != "llmrl-train" else "")


def last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return " / ".join(lines[-2:])


def toy(root: Path, rows: int = 3, **options: Any) -> Path:
    """Create a small finished run."""
    from llmrl.run.run import Run

    with Run.open(root, "toys", {"env": "toy", **options}, ["env=toy"], 0) as run:
        if not run.finished:
            for i in range(run.iteration, rows):
                run.metrics.log("update", "updates", {"loss": 1.0 / (i + 1)}, updates=i + 1, env_steps=i)
                run.checkpoint(i + 1, {"i": i + 1})
            run.result, run.summary = 1.0, {"best": 1.0}
    return run.folder


def refused(trial: Callable[[], Any]) -> tuple[bool, str]:
    """Return whether a call ends in an error that is meant for users."""
    from llmrl.core.errors import LlmrlError

    try:
        got = trial()
    except LlmrlError as error:
        return "\n" not in str(error).strip() or len(str(error)) < 2000, str(error)
    return False, f"went on: {got!r}"


# Environments


for where, told in (("reset", "half a"), ("step", "IndexError"), ("close", "Input/output error")):

    @attack(f"an environment raises in {where}()", "failed, named, no traceback on the terminal; goes on when mended")
    def _(folder: Path, where: str = where, told: str = told) -> tuple[bool, str]:
        (folder / "mine_env.py").write_text(ENV)
        overrides = (*SMALL, "trusted_modules=[mine_env]", "env._target_=mine_env.Mine")
        code, said = command(folder, *overrides, FAULT=where)
        held = code == 1 and plain(said) and f"escape_room raised in {where}()" in said and told in said
        [trace] = folder.rglob("traceback.txt")
        held &= "mine_env.py" in trace.read_text() and str(trace) in said
        if where == "step":
            again, _ = command(folder, *overrides)
            held &= again == 0
        return held, last(said)


@attack("an environment raises and HYDRA_FULL_ERROR=1 is set", "the traceback is shown to who asks")
def _(folder: Path) -> tuple[bool, str]:
    (folder / "mine_env.py").write_text(ENV)
    overrides = (*SMALL, "trusted_modules=[mine_env]", "env._target_=mine_env.Mine")
    code, said = command(folder, *overrides, FAULT="step", HYDRA_FULL_ERROR="1")
    return code == 1 and "Traceback" in said and "IndexError" in said, last(said)


@attack("an environment's module ends in a SyntaxError", "one message that names the module")
def _(folder: Path) -> tuple[bool, str]:
    (folder / "mine_env.py").write_text("class Mine(:\n")
    code, said = command(folder, *SMALL, "trusted_modules=[mine_env]", "env._target_=mine_env.Mine")
    return code == 1 and "Traceback" not in said and "mine_env" in said, last(said)


# Options


@attack("n_envs=1e12, written out", "refused with the memory it needs, in a moment, no folder left")
def _(folder: Path) -> tuple[bool, str]:
    started = time.monotonic()
    code, said = command(folder, "env=cartpole", "env.n_envs=1000000000000")
    held = code == 1 and plain(said) and "GiB" in said and not list(folder.rglob("s[0-9]*"))
    return held and time.monotonic() - started < 60, last(said)


@attack("infinities and NaN in 12 options of 6 parts", "each refused by name")
def _(folder: Path) -> tuple[bool, str]:
    from experiments import compose
    from llmrl.core.errors import ConfigError
    from llmrl.experiment.parts import check_values

    missed = []
    for option in ("design.spending_cost", "agent.ppo.learning_rate", "agent.ppo.gamma", "agent.ppo.clip",
                   "hardware.memory_gb", "agent.ppo.entropy_coefficient"):  # fmt: skip
        for value in ("inf", "nan"):
            try:
                check_values(compose("env=escape_room", "principal=ucb", f"++{option}={value}"))
                missed.append(f"{option}={value}")
            except ConfigError as error:
                if option not in str(error):
                    missed.append(str(error))
    return not missed, "; ".join(missed) or "all refused by name"


@attack("~principal, ~env with fields, ~design, a slip of grammar beside experiment=", "one line each, no second hint")
def _(folder: Path) -> tuple[bool, str]:
    seen = []
    for arguments, told in (
        (["env=escape_room", "~principal"], "principal=none"),
        (["env=escape_room", "~env", "env.n_envs=2"], "~env: options cannot be removed"),
        (["experiment=search/linear", "treatment=short_history", "design={steps:3"], ""),
    ):
        code, said = command(folder, *arguments)
        seen.append(last(said))
        if code != 1 or "Traceback" in said or told not in said or "has no option" in said:
            return False, last(said)
    return not list(folder.rglob("s[0-9]*")), " // ".join(seen)


@attack("a run's saved config given to --config-name", "the command of that run, ready to paste")
def _(folder: Path) -> tuple[bool, str]:
    code, said = command(folder, *SMALL)
    [config] = folder.rglob("s0/config.yaml")
    code_2, said = command(folder, f"--config-name={config}")
    return (code, code_2) == (0, 1) and plain(said) and " ".join(SMALL) in said, last(said)


FILES = {
    "a tab": (b"design:\n\tsteps: 3\n", "line 2, column 1"),
    "a: b: c": (b"a: b: c\n", "line 1, column 5"),
    "an unclosed bracket": (b"design:\n  steps: [1, 2\nname: x\n", "line 3, column 5"),
    "a duplicate key": (b"seed: 1\nname: a\nseed: 2\n", "line 3, column 1"),
    "a NUL": (b"name: a\0b\n", "line 1, column 8"),
    "a Python tag": (b"name: !!python/object/apply:os.system ['touch touched']\n", "line 1, column 7"),
    "an alias of itself": (b"prompts: &a\n  x: *a\n", "line 1, column 10"),
    "two aliases of itself": (b"prompts: &a [*a, *a]\n", "line 1, column 10"),
    "latin-1": (b"name: \xe9\n", "line 1, column 7"),
    "an open interpolation": (b"name: ${nope\n", "line 1, column 7"),
}


for what, (content, place) in FILES.items():

    @attack(f"an option file with {what}", "one line with file, line, column and reason")
    def _(folder: Path, content: bytes = content, place: str = place) -> tuple[bool, str]:
        (folder / "experiment").mkdir()
        (folder / "experiment" / "mine.yaml").write_bytes(content)
        code, said = command(folder, "--config-dir", str(folder), "experiment=mine", "env=escape_room", "dry_run=true")
        lines = [line for line in said.splitlines() if line and not line.startswith("Set the environment variable")]
        held = code == 1 and len(lines) == 1 and f"mine.yaml, {place}: " in lines[0]
        return held and not (folder / "touched").exists(), " / ".join(lines)


for word in ("seed=${seed}", "name=${nope}", "env=null", "output_root=${output_root}", "env.n_envs=${nope:1}"):

    @attack(f"{word} is typed", "one line that names it")
    def _(folder: Path, word: str = word) -> tuple[bool, str]:
        code, said = command(folder, "env=escape_room", word, "dry_run=true")
        lines = [line for line in said.splitlines() if line and not line.startswith("Set the environment variable")]
        return code == 1 and len(lines) == 1 and f"{word}: " in lines[0], " / ".join(lines)


# Records


def odd_records(content: dict[str, Any]) -> dict[str, bytes]:
    """Return invalid forms that a record may have after changes by others."""

    def changed(**fields: Any) -> bytes:
        return json.dumps({**content, **fields}).encode()

    return {
        "half of it": json.dumps(content).encode()[:40],
        "a list of one": json.dumps([content]).encode(),
        "UTF-16": json.dumps(content).encode("utf-16"),
        "a BOM": b"\xef\xbb\xbf" + json.dumps(content).encode(),
        "pid text": changed(pid="1"),
        "pid negative text": changed(pid={"a": 1}),
        "attempt null": changed(attempt=None),
        "attempt 1e400": json.dumps(content).encode().replace(b'"attempt": 1', b'"attempt": 1e400'),
        "host a number": changed(host=7),
        "duplicate objects": json.dumps(content).encode() * 2,
        "nothing": b"{}",
        "deep": b'{"a":' * 100_000,
        "large": b'{"a": "' + b"x" * (65 << 20) + b'"}',
    }


for name in ("status.json", "owner.json"):

    @attack(f"13 odd {name} in turn", "each a clear error, a rerun goes on, the old one is kept aside")
    def _(folder: Path, name: str = name) -> tuple[bool, str]:
        from llmrl.results.run_records import read_run
        from llmrl.run import ownership
        from llmrl.run.run import Run

        ownership._EMPTY_GRACE_S = 0.0
        with contextlib.suppress(ZeroDivisionError), Run.open(folder, "toys", {"env": "toy"}, ["env=toy"], 0) as run:
            content = json.loads((run.folder / name).read_text())
            raise ZeroDivisionError
        wrong = []
        said = ""
        for what, data in odd_records(content).items():
            (run.folder / name).write_bytes(data)
            ok, said = refused(lambda: toy(folder))
            if not ok or str(run.folder / name) not in said or "rerun=true" not in said:
                wrong.append(f"{what}: {said}")
            again = toy(folder, rerun=True)
            if read_run(again).state != "finished" or not list(again.glob(f"backup_*/*{name}")):
                wrong.append(f"{what}: rerun")
            (run.folder / "status.json").unlink()
        return not wrong, "; ".join(wrong) or said


@attack("status.json is a directory, a FIFO's place, a link in a circle, /dev/zero", "unreadable, told, others listed")
def _(folder: Path) -> tuple[bool, str]:
    folders = []
    for i in range(4):
        shutil.copytree(toy(folder / "one"), folder / "outputs" / "study" / "defaults-00000000" / f"s{i}")
        folders.append(folder / "outputs" / "study" / "defaults-00000000" / f"s{i}")
    for each in folders[:3]:
        (each / "status.json").unlink()
    (folders[0] / "status.json").mkdir()
    (folders[1] / "status.json").symlink_to("status.json")
    (folders[2] / "status.json").symlink_to("/dev/zero")
    code, said = command(folder, "status", "outputs", name="llmrl-sweep")
    held = code == 1 and "3 unreadable, 1 finished" in said and "Traceback" not in said
    return held, next((line for line in said.splitlines() if "unreadable" in line), last(said)).strip()


@attack("metrics of odd types in a running run's rows", "llmrl-sweep status shows the rest")
def _(folder: Path) -> tuple[bool, str]:
    run = toy(folder / "outputs")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"usage/llm_cost": "free", "usage/llm_calls": [1], "principal/objective": {"a": 1}}\n')
        file.write(b'"a text"\n[["a", 1]]\n[' + b"[" * 5000 + b"\n\xff\xfe\n")
    code, said = command(folder, "status", "outputs", name="llmrl-sweep")
    return code == 0 and "1 finished" in said and "Traceback" not in said, last(said)


@attack("a report over runs with 6 kinds of damage", "a report of the whole ones; the damaged are named")
def _(folder: Path) -> tuple[bool, str]:
    from run_folders import write_run

    runs = [write_run(folder / "outputs", "game", ["principal=ucb"], seed, [1.0, 2.0]) for seed in range(8)]
    (runs[0] / "status.json").write_bytes(b"\xff\xfe")
    (runs[1] / "metrics.jsonl").write_bytes(b'{"kind": "\xff"}\n')
    (runs[2] / "metrics.jsonl").write_bytes((runs[2] / "metrics.jsonl").read_bytes().replace(b"2.0", b'"2.0"'))
    (runs[3] / "summary.json").write_bytes(b'{"references": {"contexts": [7], "warning": []}, "result_episodes": 7}')
    (runs[4] / "results.json").write_bytes(b'{"per_episode": {"return": "x"}, "learned": 1, "carried": 7}')
    (runs[5] / "llm_calls.jsonl").write_bytes(b'{"cost": "x", "prompt_tokens": []}\n\xff\n{"cost": -5}\n')
    (runs[6] / "training_episodes.tsv").write_bytes(b"# {\xff}\n\xff\n\xff\n")
    code, said = command(folder, "outputs", "--no-figures", name="llmrl-report")
    return code == 0 and "Traceback" not in said and (folder / "outputs/report/report.html").exists(), last(said)


@attack("a finished run evaluated with a config.yaml of zeros, then truncated checkpoints", "clear errors, code 1")
def _(folder: Path) -> tuple[bool, str]:
    run = toy(folder / "outputs")
    config = (run / "config.yaml").read_bytes()
    seen = []
    (run / "config.yaml").write_bytes(bytes(200))
    code, said = command(folder, str(run), name="llmrl-evaluate")
    seen.append(last(said))
    held = code == 1 and "Traceback" not in said and "config.yaml" in said
    (run / "config.yaml").write_bytes(config)
    for path in run.glob("checkpoints/*.pt"):
        path.write_bytes(path.read_bytes()[:100])
    code, said = command(folder, str(run), name="llmrl-evaluate")
    held &= code == 1 and "Traceback" not in said and "damaged" in said
    return held, " // ".join([*seen, last(said)])


@attack("200 checkpoints of random pickles, whose digests are right", "CheckpointError each, no code run")
def _(folder: Path) -> tuple[bool, str]:
    import random

    from llmrl.core.errors import CheckpointError
    from llmrl.run.checkpoints import MAGIC, CheckpointStore

    path, draws, kinds = folder / "checkpoint_000000001.pt", random.Random(0), set()
    for i in range(200):
        data = draws.randbytes(draws.randint(0, 60)) if i % 2 else b"\x80\x02" + draws.randbytes(30)
        path.write_bytes(data + MAGIC + hashlib.sha256(data).digest())
        try:
            CheckpointStore(folder).load_newest()
            return False, f"believed {data!r}"
        except CheckpointError as error:
            kinds.add(type(error).__name__)
    return True, f"200 refused as {kinds}"


@attack("resuming where metrics.jsonl is not UTF-8", "an error with the file; rerun=true goes on")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.run.run import Run

    with contextlib.suppress(ZeroDivisionError), Run.open(folder, "toys", {"env": "toy"}, ["env=toy"], 0) as run:
        run.metrics.log("update", "updates", {"loss": 1.0}, updates=1)
        run.checkpoint(1, {"i": 1})
        raise ZeroDivisionError
    (run.folder / "metrics.jsonl").write_bytes(b'{"kind": "\xc3\x28"}\n')
    held, said = refused(lambda: toy(folder))
    toy(folder, rerun=True)
    return held and "metrics.jsonl" in said and "rerun=true" in said, said


# Run folders that somebody else has made


def interrupted(root: Path) -> Path:
    """Create a run that stopped after its first checkpoint."""
    from llmrl.run.run import Run

    with contextlib.suppress(ZeroDivisionError), Run.open(root, "toys", {"env": "toy"}, ["env=toy"], 0) as run:
        run.metrics.log("update", "updates", {"loss": 1.0}, updates=1, env_steps=0)
        run.checkpoint(1, {"i": 1})
        raise ZeroDivisionError
    return run.folder


LINKED = (
    *("metrics.jsonl", "training_episodes.tsv", "run.log", "llm_calls.jsonl", "episodes.jsonl", ".events.tmp"),
    *("provenance.json", "config.yaml", "summary.json", "results.json", "owner.json", "status.json"),
    *("checkpoints", "checkpoints/checkpoint_000000001.pt", "episodes", "episodes/0/frames", "trajectories"),
    *("sources", "sources.partial", "loggers", "loggers/wandb", "llm_images", "backup.partial"),
)

for where in ("a file", "a folder", "nowhere"):

    @attack(f"{len(LINKED)} names of a run folder as links to {where}", "refused or replaced, on resume and rerun")
    def _(folder: Path, where: str = where) -> tuple[bool, str]:
        from llmrl.run import ownership

        ownership._EMPTY_GRACE_S = 0.0
        precious = folder / "precious"
        for name in ("file", "checkpoint_000000009.pt", ".checkpoint_x.tmp", "7.npz", "0/frames/000000.png"):
            (precious / name).parent.mkdir(parents=True, exist_ok=True)
            (precious / name).write_text("years of work\n")
        before = {path: path.read_text() for path in precious.rglob("*") if path.is_file()}
        target = {"a file": precious / "file", "a folder": precious, "nowhere": precious / "new"}[where]
        wrong, ends = [], []
        for i, name in enumerate(LINKED):
            for rerun in (False, True):
                root = folder / f"{i}_{rerun}"
                path = interrupted(root) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                path.symlink_to(target)
                held, said = refused(lambda root=root, rerun=rerun: toy(root, rerun=rerun))
                ends.append(held)
                if not held and not said.startswith("went on"):
                    wrong.append(f"{name}: {said}")
                if before != {path: path.read_text() for path in precious.rglob("*") if path.is_file()}:
                    return False, f"{name}, rerun={rerun}: something outside has changed"
        return not wrong, "; ".join(wrong) or f"{sum(ends)} of {len(ends)} refused, nothing outside has changed"


@attack("metrics.jsonl is a link to a thesis where a real command goes on", "one message, the thesis is whole")
def _(folder: Path) -> tuple[bool, str]:
    code, said = command(folder, *SMALL)
    run = next(folder.rglob("config.yaml")).parent
    (folder / "thesis").write_text("years of work\n")
    for name in ("status.json", "metrics.jsonl"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").symlink_to(folder / "thesis")
    again, said = command(folder, *SMALL)
    held = code == 0 and again == 1 and plain(said) and "metrics.jsonl" in said
    return held and (folder / "thesis").read_text() == "years of work\n", last(said)


@attack("status.json of an unfinished run says finished, result 99", "refused; goes on from its checkpoint without it")
def _(folder: Path) -> tuple[bool, str]:
    run = interrupted(folder)
    content = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**content, "state": "finished", "result": 99.0}))
    held, said = refused(lambda: toy(folder))
    (run / "status.json").unlink()
    toy(folder)
    result = json.loads((run / "status.json").read_text())["result"]
    return held and "summary.json" in said and result == 1.0, said


# Files that go away


for what in ("unlinked", "replaced", "truncated", "moved and linked back"):

    @attack(f"metrics.jsonl {what} while the run goes on", "failed, and rerun=true is named")
    def _(folder: Path, what: str = what) -> tuple[bool, str]:
        from llmrl.core.errors import RunFolderError
        from llmrl.run.run import Run
        from llmrl.run.status import read_status

        try:
            with Run.open(folder, "toys", {"env": "toy"}, [], 0) as run:
                run.metrics.log("update", "updates", {"loss": 1.0}, updates=1)
                path = run.folder / "metrics.jsonl"
                if what == "unlinked":
                    path.unlink()
                elif what == "truncated":
                    os.truncate(path, 3)
                elif what == "replaced":
                    shutil.copy(path, f"{path}.new")
                    Path(f"{path}.new").replace(path)
                else:
                    path.rename(run.folder / "old")
                    path.symlink_to("nowhere")
                run.result = 1.0
        except RunFolderError as error:
            status = read_status(run.folder)
            return status is not None and status.state == "failed" and "rerun=true" in str(error), str(error)
        return False, "finished"


@attack("the run folder is removed under a running command", "one message, exit code 1")
def _(folder: Path) -> tuple[bool, str]:
    stop = threading.Event()

    def remover() -> None:
        while not stop.is_set():
            for each in folder.rglob("checkpoint_*.pt"):
                shutil.rmtree(each.parents[1], ignore_errors=True)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=remover)
    thread.start()
    code, said = command(folder, *SMALL, "design.steps=3000")
    stop.set()
    thread.join()
    return code == 1 and plain(said), last(said)


# Disks


@attack("a tmpfs of 300 kB under the outputs of a real command", "failed, room named, nothing half-written, resumes")
def _(folder: Path) -> tuple[bool, str]:
    disk = folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True).returncode:
        return True, "no file system can be mounted here"
    try:
        overrides = (*SMALL, "design.steps=300", f"output_root={disk}/outputs")
        code, said = command(folder, *overrides)
        left = [path.name for path in disk.rglob("*.tmp")]
        held = code == 1 and plain(said) and "No space left on device" in said and "MB are free in" in said and not left
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        again, said_2 = command(folder, *overrides)
        return held and again == 0, f"{last(said)}; left {left}; again {again} {'' if again == 0 else last(said_2)}"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@attack("a tmpfs of 12 inodes under the outputs of a real command", "failed, inodes named, resumes")
def _(folder: Path) -> tuple[bool, str]:
    disk = folder / "disk"
    disk.mkdir()
    options = "size=52m,nr_inodes=12"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], capture_output=True).returncode:
        return True, "no file system can be mounted here"
    try:
        overrides = (*SMALL, f"output_root={disk}/outputs")
        code, said = command(folder, *overrides)
        held = code == 1 and plain(said) and "inodes" in said and "MB are free" not in said
        subprocess.run(["mount", "-o", "remount,nr_inodes=1000", str(disk)], check=True)
        again, said_2 = command(folder, *overrides)
        return held and again == 0, f"{last(said)}; again {again} {'' if again == 0 else last(said_2)}"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@attack("a full tmpfs under 6 writers of files", "a clear error each, and an empty folder")
def _(folder: Path) -> tuple[bool, str]:
    import numpy as np
    import torch

    from llmrl.core.frames import save_video
    from llmrl.core.records import ChatReply, ChatRequest
    from llmrl.llms.cache import Cache
    from llmrl.run.checkpoints import CheckpointStore
    from llmrl.run.files import write_atomic
    from llmrl.run.ownership import Ownership
    from llmrl.teachers.offline_planner import save_plan_table

    disk = folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True).returncode:
        return True, "no file system can be mounted here"
    noise = list(np.random.default_rng(0).integers(0, 255, (9, 96, 96, 3), dtype=np.uint8))
    (disk / "keep").write_text("kept")
    try:
        filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            while os.write(filler, b"x" * 4096):
                continue
        os.close(filler)
        trials: list[Callable[[], Any]] = [
            lambda: write_atomic(disk / "keep", "x" * 9000),
            lambda: CheckpointStore(disk).save(1, {"w": torch.zeros(9000)}),
            lambda: Cache(disk).put("ab" * 32, {}, ChatRequest(()), ChatReply("x" * 9000)),
            lambda: save_plan_table(disk / "plans.json", "d", "x" * 9000, {}),
            lambda: save_video(noise, disk, "film", 4.0),
            lambda: Ownership(disk),
        ]
        seen = [refused(trial) for trial in trials]
        left = sorted(path.name for path in disk.rglob("*") if path.is_file())
        whole = (disk / "keep").read_text() == "kept" and left == ["filler", "keep"]
        told = sum("MB are free" in text for _, text in seen)
        return whole and all(ok for ok, _ in seen) and told == len(seen), f"left {left}; {told} told; {seen[-2][1]}"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@attack("files may not grow beyond 30 kB (ulimit -f) in a real command", "failed, ulimit named, no tmp left")
def _(folder: Path) -> tuple[bool, str]:
    script = f"trap '' XFSZ; ulimit -f 30; exec {BIN}/llmrl-train {' '.join(SMALL)} design.steps=3000"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    left = [path.name for path in folder.rglob("*.tmp")]
    held = done.returncode == 1 and plain(done.stderr) and "ulimit -f" in done.stderr and not left
    return held, f"{last(done.stderr)}; left {left}"


@attack("a run's log on a full disk", "one line on the terminal, no traceback of the logging library")
def _(folder: Path) -> tuple[bool, str]:
    import logging

    from full_disk import limit_file_size
    from llmrl.run.log_file import LogFile

    said = io.StringIO()
    with contextlib.redirect_stderr(said), limit_file_size(0):
        log = LogFile(folder)
        for i in range(5):
            log.write(logging.getLogger("llmrl.attack"), logging.ERROR, f"line {i}")
        log.close()
    text = said.getvalue()
    return "Traceback" not in text and 1 <= text.count("cannot be written") <= 2, text.strip()


# Language models


@attack("a server that counts -1e6 tokens in every reply, over HTTP", "unknown, told once, nothing is won back")
def _(folder: Path) -> tuple[bool, str]:
    import fake_openai_server
    from llmrl.core.records import ChatRequest
    from llmrl.llms.call_log import CallLog
    from llmrl.llms.client import ChatClient
    from models import make_openai_model

    fake_openai_server.WRONG_USAGE = ({"prompt_tokens": -1_000_000, "completion_tokens": -1_000_000},)
    with fake_openai_server.FakeOpenAIServer() as server:
        provider = make_openai_model(server.url, "fake-model", input_price=1.0, output_price=1.0)
        client = ChatClient(provider, call_log=CallLog(folder / "calls.jsonl"))
        spent = []
        for i in range(4):
            server.faults += ["wrong_usage"] if i % 2 else []
            client.chat([ChatRequest(({"role": "user", "content": f"{i}"},))])
            spent.append((client.budget.spent.cost, client.budget.spent.tokens))
        client.close()
    return spent == sorted(spent) and all(cost >= 0 for cost, _ in spent), f"spent {spent}"


@attack("1000 kept replies with one byte flipped", "a reply as it was, or asked anew; never an error")
def _(folder: Path) -> tuple[bool, str]:
    import logging
    import random

    from llmrl.core.records import ChatReply, ChatRequest, find_impossible_fields
    from llmrl.llms.cache import Cache

    logging.getLogger("llmrl.llms.cache").setLevel(logging.ERROR)
    cache, draws, anew = Cache(folder), random.Random(0), 0
    reply = ChatReply("yes\nno", 11, 7, 3, 0.25, 1.5, "stop")
    cache.put("ab" * 32, {}, ChatRequest(()), reply)
    [path] = folder.rglob("*.json")
    whole = path.read_bytes()
    for _ in range(1000):
        data = bytearray(whole)
        data[draws.randrange(len(data))] = draws.randrange(256)
        path.write_bytes(bytes(data))
        found = cache.get("ab" * 32)
        if found is None:
            anew += 1
        elif find_impossible_fields(found):
            return False, f"believed {found}"
    cache.put("ab" * 32, {}, ChatRequest(()), reply)
    return True, f"{anew} asked anew, {1000 - anew} read"


@attack("a log of calls with costs below zero and texts for counts", "totals unknown, never lower")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.analysis.llm_calls import read_run_totals

    lines = [{"model": "m", "cost": 1.0, "prompt_tokens": 5, "completion_tokens": 5}, {"model": "m", "cost": -50}]
    lines.append({"model": "m", "cost": "x", "prompt_tokens": "5", "completion_tokens": True})
    (folder / "llm_calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    total = read_run_totals(folder)
    return (total.cost, total.prompt_tokens, total.completion_tokens) == (None, None, None), str(total)


# Sweeps


def launched(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / "llmrl-train"), "--multirun", *SMALL, *overrides],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def states(folder: Path) -> list[str]:
    from llmrl.sweeps.run_control import query_run_records

    return sorted(r.state for r in query_run_records(folder / "outputs")) if (folder / "outputs").exists() else []


def until(condition: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)


for how, expected in (("Ctrl-C", "stopped"), ("llmrl-sweep cancel", "preempted"), ("kill -9 of the launcher", "lost")):

    @attack(f"{how} on a sweep of which one run runs and two wait", "who waits is canceled; lost after kill -9 alone")
    def _(folder: Path, how: str = how, expected: str = expected) -> tuple[bool, str]:
        process = launched(folder, "design.steps=100000", "seed=0,1,2", "hardware.parallel=1")
        until(lambda: "running" in states(folder))
        if how == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
        elif how == "llmrl-sweep cancel":
            command(folder, "cancel", "outputs", name="llmrl-sweep")
        else:
            process.kill()
        _, err = process.communicate(timeout=90) if expected != "lost" else ("", "")
        seen = states(folder)
        if expected == "lost":
            process.wait()
            seen = states(folder)
            command(folder, "cancel", "outputs", name="llmrl-sweep")
            until(lambda: "running" not in states(folder) and not list(folder.rglob("owner.json")))
            time.sleep(1)  # its process leaves after it has let go of the folder
            return seen == ["lost", "lost", "running"] and "Traceback" not in err, str(seen)
        held = seen == sorted(["canceled", "canceled", expected]) and "Traceback" not in err
        return held, f"{seen}, exit code {process.returncode}"


@attack("llmrl-sweep cancel of job ids that are options, and of a bystander's process", "not reached, not signaled")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.run import ownership
    from llmrl.run.queued import LaunchRecord
    from llmrl.run.status import Status

    for name, text in (("scancel", ""), ("squeue", ""), ("scontrol", "ClusterName = atlas\n"), ("sacct", "")):
        (folder / "bin").mkdir(exist_ok=True)
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\necho "$@" >> {folder}/{name}.asked\nprintf "{text}"\n')
        script.chmod(0o755)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        machine, start = ownership.get_machine_id(), ownership.get_process_start(bystander.pid) or ""
        slurm = "llmrl.sweeps.backends.slurm_submission.Slurm"
        for i, job_id in enumerate(("--user=root", "--state=RUNNING", "1 2", "1_[0-9]", "")):
            run = folder / "outputs" / "study" / "defaults-00000000" / f"s{i}"
            run.mkdir(parents=True)
            LaunchRecord(
                slurm if job_id else "", 0, job_id, machine, bystander.pid, start, "here", str(folder), "", "elsewhere",
                "ada", 0.0, "", [],
            ).write(run)  # fmt: skip
        owned = folder / "outputs" / "study" / "defaults-00000000" / "s9"
        owned.mkdir()
        Status("running", pid=bystander.pid).write(owned)
        owner = ownership.Owner("here", machine, bystander.pid, start, 1, "", 0, "token")
        (owned / "owner.json").write_text(json.dumps(vars(owner)))
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        code, said = command(folder, "cancel", "outputs", name="llmrl-sweep", PATH=path)
        held = code == 1 and said.count("not reached") == 6 and "Traceback" not in said
        return held and not (folder / "scancel.asked").exists() and bystander.poll() is None, last(said)
    finally:
        bystander.kill()
        bystander.wait()


@attack("SLURM's accounts of arrays that were canceled, in 5 spellings", "canceled for tasks that never began")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.sweeps.backends.slurm_submission import expand_array_job_ids

    found = [expand_array_job_ids(text) for text in ("1", "1_2", "1_[0-2]", "1_[0,4-5%7]", "1_[9%1]")]
    expected = [["1"], ["1_2"], ["1_0", "1_1", "1_2"], ["1_0", "1_4", "1_5"], ["1_9"]]
    return found == expected, str(found)


if __name__ == "__main__":
    main("Errors: injected faults and corrupted run folders")
