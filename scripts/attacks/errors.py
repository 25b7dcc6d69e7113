"""Error handling under injected faults and with corrupted run folders.

    python scripts/attacks/errors.py [words of an attack's name]

Takes about two minutes.
"""

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
from attack import attack, main, make_python_path

BIN = Path(sys.executable).parent
SMALL = (
    *("env=escape_room", "env.n_envs=2", "agent=random", "principal=random", "design.steps=3"),
    *("design.adapt_rounds=0", "design.validate_episodes=2", "design.references=0", "checkpoint_seconds=0"),
)
ENV = '''
"""Environment with an injected fault."""
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


def is_llmrl_message(text: str) -> bool:
    """Return whether a text is a message of llmrl without a traceback."""
    return "Traceback" not in text and "llmrl-" in text


def run_command(folder: Path, *arguments: str, name: str = "llmrl-train", **variables: str) -> tuple[int, str]:
    """Run a command in a new process, and return its exit code and standard error.

    Args:
        folder: working directory.
        arguments: command-line arguments.
        name: console script; the text includes standard output unless it is `llmrl-train`.
        variables: environment variables.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": make_python_path(folder), **variables}
    environment.pop("HYDRA_FULL_ERROR", None) if "HYDRA_FULL_ERROR" not in variables else None
    process = subprocess.run(
        [str(BIN / name), *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=150
    )
    return process.returncode, process.stderr + (process.stdout if name != "llmrl-train" else "")


def get_last_lines(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return " / ".join(lines[-2:])


def make_finished_run(root: Path, rows: int = 3, **options: Any) -> Path:
    """Create a small finished run, or resume or rerun an existing run."""
    from llmrl.run.run import Run

    with Run.open(root, "toys", {"env": "toy", **options}, ["env=toy"], 0) as run:
        if not run.finished:
            for i in range(run.iteration, rows):
                run.metrics.log("update", "updates", {"loss": 1.0 / (i + 1)}, updates=i + 1, env_steps=i)
                run.checkpoint(i + 1, {"i": i + 1})
            run.result, run.summary = 1.0, {"best": 1.0}
    return run.folder


def check_rejection(trial: Callable[[], Any]) -> tuple[bool, str]:
    """Return whether a call raises an `LlmrlError` with a short message, and the message."""
    from llmrl.core.errors import LlmrlError

    try:
        returned = trial()
    except LlmrlError as error:
        return "\n" not in str(error).strip() or len(str(error)) < 2000, str(error)
    return False, f"no error: {returned!r}"


# Environments


for place, expected in (("reset", "half a"), ("step", "IndexError"), ("close", "Input/output error")):

    @attack(f"an environment raises in {place}()", "failed with a clear message, no traceback; resumes when fixed")
    def _(folder: Path, place: str = place, expected: str = expected) -> tuple[bool, str]:
        (folder / "mine_env.py").write_text(ENV)
        overrides = (*SMALL, "trusted_modules=[mine_env]", "env._target_=mine_env.Mine")
        code, message = run_command(folder, *overrides, FAULT=place)
        passed = (
            code == 1
            and is_llmrl_message(message)
            and f"escape_room raised in {place}()" in message
            and expected in message
        )
        [trace] = folder.rglob("traceback.txt")
        passed &= "mine_env.py" in trace.read_text() and str(trace) in message
        if place == "step":
            second, _ = run_command(folder, *overrides)
            passed &= second == 0
        return passed, get_last_lines(message)


@attack("an environment raises and HYDRA_FULL_ERROR=1 is set", "the traceback is printed")
def _(folder: Path) -> tuple[bool, str]:
    (folder / "mine_env.py").write_text(ENV)
    overrides = (*SMALL, "trusted_modules=[mine_env]", "env._target_=mine_env.Mine")
    code, message = run_command(folder, *overrides, FAULT="step", HYDRA_FULL_ERROR="1")
    return code == 1 and "Traceback" in message and "IndexError" in message, get_last_lines(message)


@attack("a syntax error in the module of an environment", "one message with the name of the module")
def _(folder: Path) -> tuple[bool, str]:
    (folder / "mine_env.py").write_text("class Mine(:\n")
    code, message = run_command(folder, *SMALL, "trusted_modules=[mine_env]", "env._target_=mine_env.Mine")
    return code == 1 and "Traceback" not in message and "mine_env" in message, get_last_lines(message)


# Options


@attack("n_envs=1000000000000", "rejected quickly with the required memory, no folder")
def _(folder: Path) -> tuple[bool, str]:
    started = time.monotonic()
    code, message = run_command(folder, "env=cartpole", "env.n_envs=1000000000000")
    passed = code == 1 and is_llmrl_message(message) and "GiB" in message and not list(folder.rglob("s[0-9]*"))
    return passed and time.monotonic() - started < 60, get_last_lines(message)


@attack("infinity and NaN in 6 options", "rejected with the key of the option")
def _(folder: Path) -> tuple[bool, str]:
    from experiments import compose
    from llmrl.core.errors import ConfigError
    from llmrl.experiment.parts import check_values

    failures = []
    for option in ("design.spending_cost", "agent.ppo.learning_rate", "agent.ppo.gamma", "agent.ppo.clip",
                   "hardware.memory_gb", "agent.ppo.entropy_coefficient"):  # fmt: skip
        for value in ("inf", "nan"):
            try:
                check_values(compose("env=escape_room", "principal=ucb", f"++{option}={value}"))
                failures.append(f"{option}={value}")
            except ConfigError as error:
                if option not in str(error):
                    failures.append(str(error))
    return not failures, "; ".join(failures) or "all rejected with the key"


@attack("~principal, ~env with options, a syntax error in an override with experiment=", "one clear line each")
def _(folder: Path) -> tuple[bool, str]:
    observed = []
    for arguments, expected in (
        (["env=escape_room", "~principal"], "principal=none"),
        (["env=escape_room", "~env", "env.n_envs=2"], "~env: options cannot be removed"),
        (["experiment=search/linear", "treatment=short_history", "design={steps:3"], ""),
    ):
        code, message = run_command(folder, *arguments)
        observed.append(get_last_lines(message))
        if code != 1 or "Traceback" in message or expected not in message or "has no option" in message:
            return False, get_last_lines(message)
    return not list(folder.rglob("s[0-9]*")), " // ".join(observed)


@attack("the saved config of a run as --config-name", "the message contains the command of the run")
def _(folder: Path) -> tuple[bool, str]:
    code, message = run_command(folder, *SMALL)
    [config] = folder.rglob("s0/config.yaml")
    config_code, message = run_command(folder, f"--config-name={config}")
    passed = (code, config_code) == (0, 1) and is_llmrl_message(message) and " ".join(SMALL) in message
    return passed, get_last_lines(message)


INVALID_YAML = {
    "a tab": (b"design:\n\tsteps: 3\n", "line 2, column 1"),
    "a: b: c": (b"a: b: c\n", "line 1, column 5"),
    "an unclosed bracket": (b"design:\n  steps: [1, 2\nname: x\n", "line 3, column 5"),
    "a duplicate key": (b"seed: 1\nname: a\nseed: 2\n", "line 3, column 1"),
    "a NUL": (b"name: a\0b\n", "line 1, column 8"),
    "a Python tag": (b"name: !!python/object/apply:os.system ['touch touched']\n", "line 1, column 7"),
    "a recursive alias in a mapping": (b"prompts: &a\n  x: *a\n", "line 1, column 10"),
    "two recursive aliases in a list": (b"prompts: &a [*a, *a]\n", "line 1, column 10"),
    "latin-1": (b"name: \xe9\n", "line 1, column 7"),
    "an unclosed interpolation": (b"name: ${nope\n", "line 1, column 7"),
}


for fault, (content, location) in INVALID_YAML.items():

    @attack(f"an option file with {fault}", "one line with file, line, column and reason")
    def _(folder: Path, content: bytes = content, location: str = location) -> tuple[bool, str]:
        (folder / "experiment").mkdir()
        (folder / "experiment" / "mine.yaml").write_bytes(content)
        code, message = run_command(
            folder, "--config-dir", str(folder), "experiment=mine", "env=escape_room", "dry_run=true"
        )
        lines = [line for line in message.splitlines() if line and not line.startswith("Set the environment variable")]
        passed = code == 1 and len(lines) == 1 and f"mine.yaml, {location}: " in lines[0]
        return passed and not (folder / "touched").exists(), " / ".join(lines)


for word in ("seed=${seed}", "name=${nope}", "env=null", "output_root=${output_root}", "env.n_envs=${nope:1}"):

    @attack(f"override {word}", "one line with the override")
    def _(folder: Path, word: str = word) -> tuple[bool, str]:
        code, message = run_command(folder, "env=escape_room", word, "dry_run=true")
        lines = [line for line in message.splitlines() if line and not line.startswith("Set the environment variable")]
        return code == 1 and len(lines) == 1 and f"{word}: " in lines[0], " / ".join(lines)


# Records


def make_invalid_records(content: dict[str, Any]) -> dict[str, bytes]:
    """Return invalid contents of a record file by description."""

    def update(**fields: Any) -> bytes:
        return json.dumps({**content, **fields}).encode()

    return {
        "truncated": json.dumps(content).encode()[:40],
        "a list of one": json.dumps([content]).encode(),
        "UTF-16": json.dumps(content).encode("utf-16"),
        "a BOM": b"\xef\xbb\xbf" + json.dumps(content).encode(),
        "pid text": update(pid="1"),
        "pid negative text": update(pid={"a": 1}),
        "attempt null": update(attempt=None),
        "attempt 1e400": json.dumps(content).encode().replace(b'"attempt": 1', b'"attempt": 1e400'),
        "host a number": update(host=7),
        "duplicate objects": json.dumps(content).encode() * 2,
        "nothing": b"{}",
        "deep": b'{"a":' * 100_000,
        "large": b'{"a": "' + b"x" * (65 << 20) + b'"}',
    }


for name, remedy in (("status.json", "rerun=true"), ("owner.json", "delete that file")):

    @attack(f"13 invalid contents of {name}", f"a clear error for each, with a remedy that works: {remedy}")
    def _(folder: Path, name: str = name, remedy: str = remedy) -> tuple[bool, str]:
        from llmrl.results.run_records import read_run
        from llmrl.run import ownership
        from llmrl.run.run import Run

        ownership._EMPTY_FILE_GRACE_S = 0.0
        with contextlib.suppress(ZeroDivisionError), Run.open(folder, "toys", {"env": "toy"}, ["env=toy"], 0) as run:
            content = json.loads((run.folder / name).read_text())
            raise ZeroDivisionError
        failures = []
        message = ""
        for fault, data in make_invalid_records(content).items():
            (run.folder / name).write_bytes(data)
            ok, message = check_rejection(lambda: make_finished_run(folder))
            if not ok or str(run.folder / name) not in message or remedy not in message:
                failures.append(f"{fault}: {message}")
            if name == "owner.json":  # the owner may be alive, so only the user may remove it
                (run.folder / name).unlink()
            second = make_finished_run(folder, rerun=True)
            has_backup = name == "owner.json" or list(second.glob(f"backup_*/*{name}"))
            if read_run(second).state != "finished" or not has_backup:
                failures.append(f"{fault}: {remedy}")
            (run.folder / "status.json").unlink()
        return not failures, "; ".join(failures) or message


@attack("status.json is a directory, a circular link, /dev/zero", "reported as unreadable, other runs listed")
def _(folder: Path) -> tuple[bool, str]:
    folders = []
    for i in range(4):
        shutil.copytree(make_finished_run(folder / "one"), folder / "outputs" / "study" / "defaults-00000000" / f"s{i}")
        folders.append(folder / "outputs" / "study" / "defaults-00000000" / f"s{i}")
    for run_folder in folders[:3]:
        (run_folder / "status.json").unlink()
    (folders[0] / "status.json").mkdir()
    (folders[1] / "status.json").symlink_to("status.json")
    (folders[2] / "status.json").symlink_to("/dev/zero")
    code, message = run_command(folder, "status", "outputs", name="llmrl-sweep")
    passed = code == 1 and "3 unreadable, 1 finished" in message and "Traceback" not in message
    line = next((line for line in message.splitlines() if "unreadable" in line), get_last_lines(message))
    return passed, line.strip()


@attack("metrics of invalid types", "llmrl-sweep status shows the other metrics")
def _(folder: Path) -> tuple[bool, str]:
    run = make_finished_run(folder / "outputs")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"usage/llm_cost": "free", "usage/llm_calls": [1], "principal/objective": {"a": 1}}\n')
        file.write(b'"a text"\n[["a", 1]]\n[' + b"[" * 5000 + b"\n\xff\xfe\n")
    code, message = run_command(folder, "status", "outputs", name="llmrl-sweep")
    return code == 0 and "1 finished" in message and "Traceback" not in message, get_last_lines(message)


@attack("a report of runs with 7 types of corruption", "a report of the valid runs")
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
    code, message = run_command(folder, "outputs", "--no-figures", name="llmrl-report")
    has_report = (folder / "outputs/report/report.html").exists()
    return code == 0 and "Traceback" not in message and has_report, get_last_lines(message)


@attack("an evaluation with a config.yaml of zeros, then truncated checkpoints", "clear errors, code 1")
def _(folder: Path) -> tuple[bool, str]:
    run = make_finished_run(folder / "outputs")
    config = (run / "config.yaml").read_bytes()
    observed = []
    (run / "config.yaml").write_bytes(bytes(200))
    code, message = run_command(folder, str(run), name="llmrl-evaluate")
    observed.append(get_last_lines(message))
    passed = code == 1 and "Traceback" not in message and "config.yaml" in message
    (run / "config.yaml").write_bytes(config)
    for path in run.glob("checkpoints/*.pt"):
        path.write_bytes(path.read_bytes()[:100])
    code, message = run_command(folder, str(run), name="llmrl-evaluate")
    passed &= code == 1 and "Traceback" not in message and "damaged" in message
    return passed, " // ".join([*observed, get_last_lines(message)])


@attack("200 checkpoints of random bytes with valid digests", "CheckpointError for each, no code executed")
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
            return False, f"accepted {data!r}"
        except CheckpointError as error:
            kinds.add(type(error).__name__)
    return True, f"200 rejected with {kinds}"


@attack("resuming with a metrics.jsonl that is not UTF-8", "an error with the path; rerun=true works")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.run.run import Run

    with contextlib.suppress(ZeroDivisionError), Run.open(folder, "toys", {"env": "toy"}, ["env=toy"], 0) as run:
        run.metrics.log("update", "updates", {"loss": 1.0}, updates=1)
        run.checkpoint(1, {"i": 1})
        raise ZeroDivisionError
    (run.folder / "metrics.jsonl").write_bytes(b'{"kind": "\xc3\x28"}\n')
    passed, message = check_rejection(lambda: make_finished_run(folder))
    make_finished_run(folder, rerun=True)
    return passed and "metrics.jsonl" in message and "rerun=true" in message, message


# Manipulated run folders


def make_interrupted_run(root: Path) -> Path:
    """Create a run that stopped after its first checkpoint."""
    from llmrl.run.run import Run

    with contextlib.suppress(ZeroDivisionError), Run.open(root, "toys", {"env": "toy"}, ["env=toy"], 0) as run:
        run.metrics.log("update", "updates", {"loss": 1.0}, updates=1, env_steps=0)
        run.checkpoint(1, {"i": 1})
        raise ZeroDivisionError
    return run.folder


LINK_NAMES = (
    *("metrics.jsonl", "training_episodes.tsv", "run.log", "llm_calls.jsonl", "episodes.jsonl", ".events.tmp"),
    *("provenance.json", "config.yaml", "summary.json", "results.json", "owner.json", "status.json"),
    *("checkpoints", "checkpoints/checkpoint_000000001.pt", "episodes", "episodes/0/frames", "trajectories"),
    *("sources", "sources.partial", "loggers", "loggers/wandb", "llm_images", "backup.partial"),
)

for place in ("a file", "a folder", "nowhere"):

    @attack(f"{len(LINK_NAMES)} paths of a run folder as links to {place}", "rejected or replaced, on resume and rerun")
    def _(folder: Path, place: str = place) -> tuple[bool, str]:
        from llmrl.run import ownership

        ownership._EMPTY_FILE_GRACE_S = 0.0
        outside = folder / "outside"
        for name in ("file", "checkpoint_000000009.pt", ".checkpoint_x.tmp", "7.npz", "0/frames/000000.png"):
            (outside / name).parent.mkdir(parents=True, exist_ok=True)
            (outside / name).write_text("content\n")
        contents = {path: path.read_text() for path in outside.rglob("*") if path.is_file()}
        target = {"a file": outside / "file", "a folder": outside, "nowhere": outside / "new"}[place]
        failures, outcomes = [], []
        for i, name in enumerate(LINK_NAMES):
            for rerun in (False, True):
                root = folder / f"{i}_{rerun}"
                path = make_interrupted_run(root) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                path.symlink_to(target)
                passed, message = check_rejection(lambda root=root, rerun=rerun: make_finished_run(root, rerun=rerun))
                outcomes.append(passed)
                if not passed and not message.startswith("no error"):
                    failures.append(f"{name}: {message}")
                if contents != {path: path.read_text() for path in outside.rglob("*") if path.is_file()}:
                    return False, f"{name}, rerun={rerun}: a file outside of the run has changed"
        summary = f"{sum(outcomes)} of {len(outcomes)} rejected, no file outside of the run has changed"
        return not failures, "; ".join(failures) or summary


@attack("metrics.jsonl is a link to another file when a command resumes", "one message, the file is unchanged")
def _(folder: Path) -> tuple[bool, str]:
    code, message = run_command(folder, *SMALL)
    run = next(folder.rglob("config.yaml")).parent
    (folder / "other_file").write_text("content\n")
    for name in ("status.json", "metrics.jsonl"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").symlink_to(folder / "other_file")
    second, message = run_command(folder, *SMALL)
    passed = code == 0 and second == 1 and is_llmrl_message(message) and "metrics.jsonl" in message
    return passed and (folder / "other_file").read_text() == "content\n", get_last_lines(message)


@attack("status.json of an unfinished run contains finished and result 99", "rejected; resumes without this file")
def _(folder: Path) -> tuple[bool, str]:
    run = make_interrupted_run(folder)
    content = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**content, "state": "finished", "result": 99.0}))
    passed, message = check_rejection(lambda: make_finished_run(folder))
    (run / "status.json").unlink()
    make_finished_run(folder)
    result = json.loads((run / "status.json").read_text())["result"]
    return passed and "summary.json" in message and result == 1.0, message


# Files that disappear


for fault in ("unlinked", "replaced", "truncated", "moved and linked back"):

    @attack(f"metrics.jsonl {fault} during the run", "failed, the message contains rerun=true")
    def _(folder: Path, fault: str = fault) -> tuple[bool, str]:
        from llmrl.core.errors import RunFolderError
        from llmrl.run.run import Run
        from llmrl.run.status import read_status

        try:
            with Run.open(folder, "toys", {"env": "toy"}, [], 0) as run:
                run.metrics.log("update", "updates", {"loss": 1.0}, updates=1)
                path = run.folder / "metrics.jsonl"
                if fault == "unlinked":
                    path.unlink()
                elif fault == "truncated":
                    os.truncate(path, 3)
                elif fault == "replaced":
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


@attack("the run folder is removed during a command", "one message, exit code 1")
def _(folder: Path) -> tuple[bool, str]:
    stop = threading.Event()

    def remove_run() -> None:
        while not stop.is_set():
            for path in folder.rglob("checkpoint_*.pt"):
                shutil.rmtree(path.parents[1], ignore_errors=True)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=remove_run)
    thread.start()
    code, message = run_command(folder, *SMALL, "design.steps=3000")
    stop.set()
    thread.join()
    return code == 1 and is_llmrl_message(message), get_last_lines(message)


# Disks


@attack("outputs on a tmpfs of 300 kB", "failed with the free space, no temporary files, resumes")
def _(folder: Path) -> tuple[bool, str]:
    disk = folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)], capture_output=True).returncode:
        return True, "no file system can be mounted here"
    try:
        overrides = (*SMALL, "design.steps=300", f"output_root={disk}/outputs")
        code, message = run_command(folder, *overrides)
        remaining = [path.name for path in disk.rglob("*.tmp")]
        passed = (
            code == 1
            and is_llmrl_message(message)
            and "No space left on device" in message
            and "MB are free in" in message
            and not remaining
        )
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        second, second_message = run_command(folder, *overrides)
        ending = "" if second == 0 else get_last_lines(second_message)
        return passed and second == 0, f"{get_last_lines(message)}; remaining {remaining}; second {second} {ending}"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@attack("outputs on a tmpfs of 12 inodes", "failed with a message about inodes, resumes")
def _(folder: Path) -> tuple[bool, str]:
    disk = folder / "disk"
    disk.mkdir()
    options = "size=52m,nr_inodes=12"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], capture_output=True).returncode:
        return True, "no file system can be mounted here"
    try:
        overrides = (*SMALL, f"output_root={disk}/outputs")
        code, message = run_command(folder, *overrides)
        passed = code == 1 and is_llmrl_message(message) and "inodes" in message and "MB are free" not in message
        subprocess.run(["mount", "-o", "remount,nr_inodes=1000", str(disk)], check=True)
        second, second_message = run_command(folder, *overrides)
        ending = "" if second == 0 else get_last_lines(second_message)
        return passed and second == 0, f"{get_last_lines(message)}; second {second} {ending}"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@attack("6 writers of files on a full tmpfs", "a clear error for each, no partial files")
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
        observed = [check_rejection(trial) for trial in trials]
        remaining = sorted(path.name for path in disk.rglob("*") if path.is_file())
        is_unchanged = (disk / "keep").read_text() == "kept" and remaining == ["filler", "keep"]
        n_free = sum("MB are free" in text for _, text in observed)
        passed = is_unchanged and all(ok for ok, _ in observed) and n_free == len(observed)
        return passed, f"remaining {remaining}; {n_free} messages with the free space; {observed[-2][1]}"
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@attack("a limit of 30 kB per file (ulimit -f)", "failed with a message about ulimit, no temporary files")
def _(folder: Path) -> tuple[bool, str]:
    script = f"trap '' XFSZ; ulimit -f 30; exec {BIN}/llmrl-train {' '.join(SMALL)} design.steps=3000"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
    remaining = [path.name for path in folder.rglob("*.tmp")]
    passed = (
        process.returncode == 1 and is_llmrl_message(process.stderr) and "ulimit -f" in process.stderr and not remaining
    )
    return passed, f"{get_last_lines(process.stderr)}; remaining {remaining}"


@attack("the log of a run on a full disk", "one line on the terminal, no traceback of the logging library")
def _(folder: Path) -> tuple[bool, str]:
    import logging

    from full_disk import limit_file_size
    from llmrl.run.log_file import LogFile

    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), limit_file_size(0):
        log = LogFile(folder)
        for i in range(5):
            log.write(logging.getLogger("llmrl.attack"), logging.ERROR, f"line {i}")
        log.close()
    text = stderr.getvalue()
    return "Traceback" not in text and 1 <= text.count("cannot be written") <= 2, text.strip()


# Language models


@attack("a server that reports -1e6 tokens", "unknown usage, the budget never increases")
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
            spent.append((client.budget.usage.cost, client.budget.usage.tokens))
        client.close()
    return spent == sorted(spent) and all(cost >= 0 for cost, _ in spent), f"spent {spent}"


@attack("1000 cached replies with one modified byte", "a valid reply or a cache miss, no errors")
def _(folder: Path) -> tuple[bool, str]:
    import logging
    import random

    from llmrl.core.records import ChatReply, ChatRequest, find_impossible_fields
    from llmrl.llms.cache import Cache

    logging.getLogger("llmrl.llms.cache").setLevel(logging.ERROR)
    cache, draws, n_misses = Cache(folder), random.Random(0), 0
    reply = ChatReply("yes\nno", 11, 7, 3, 0.25, 1.5, "stop")
    cache.put("ab" * 32, {}, ChatRequest(()), reply)
    [path] = folder.rglob("*.json")
    original = path.read_bytes()
    for _ in range(1000):
        data = bytearray(original)
        data[draws.randrange(len(data))] = draws.randrange(256)
        path.write_bytes(bytes(data))
        found = cache.get("ab" * 32)
        if found is None:
            n_misses += 1
        elif find_impossible_fields(found):
            return False, f"accepted {found}"
    cache.put("ab" * 32, {}, ChatRequest(()), reply)
    return True, f"{n_misses} misses, {1000 - n_misses} read"


@attack("a call log with negative costs and texts instead of counts", "unknown totals")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.analysis.llm_calls import read_run_totals

    lines = [{"model": "m", "cost": 1.0, "prompt_tokens": 5, "completion_tokens": 5}, {"model": "m", "cost": -50}]
    lines.append({"model": "m", "cost": "x", "prompt_tokens": "5", "completion_tokens": True})
    (folder / "llm_calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    total = read_run_totals(folder)
    return (total.cost, total.prompt_tokens, total.completion_tokens) == (None, None, None), str(total)


# Sweeps


def launch_sweep(folder: Path, *overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / "llmrl-train"), "--multirun", *SMALL, *overrides],
        cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def query_states(folder: Path) -> list[str]:
    from llmrl.sweeps.run_control import query_run_records

    return sorted(r.state for r in query_run_records(folder / "outputs")) if (folder / "outputs").exists() else []


def wait_until(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


for method, expected in (
    ("Ctrl-C", "stopped"),
    ("llmrl-sweep cancel", "preempted"),
    ("kill -9 of the launcher", "lost"),
):

    @attack(
        f"{method} on a sweep with one running and two pending runs", "pending runs canceled, or lost after kill -9"
    )
    def _(folder: Path, method: str = method, expected: str = expected) -> tuple[bool, str]:
        process = launch_sweep(folder, "design.steps=100000", "seed=0,1,2", "hardware.parallel=1")
        wait_until(lambda: "running" in query_states(folder))
        if method == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
        elif method == "llmrl-sweep cancel":
            run_command(folder, "cancel", "outputs", name="llmrl-sweep")
        else:
            process.kill()
        _, err = process.communicate(timeout=90) if expected != "lost" else ("", "")
        observed = query_states(folder)
        if expected == "lost":
            process.wait()
            observed = query_states(folder)
            run_command(folder, "cancel", "outputs", name="llmrl-sweep")
            wait_until(lambda: "running" not in query_states(folder) and not list(folder.rglob("owner.json")))
            time.sleep(1)  # the process exits after it has released the folder
            return observed == ["lost", "lost", "running"] and "Traceback" not in err, str(observed)
        passed = observed == sorted(["canceled", "canceled", expected]) and "Traceback" not in err
        return passed, f"{observed}, exit code {process.returncode}"


@attack("llmrl-sweep cancel with options as job IDs, and with an unrelated process", "not reached, not signaled")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.run import ownership
    from llmrl.run.queued import LaunchRecord
    from llmrl.run.status import Status

    for name, text in (("scancel", ""), ("squeue", ""), ("scontrol", "ClusterName = atlas\n"), ("sacct", "")):
        (folder / "bin").mkdir(exist_ok=True)
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\necho "$@" >> {folder}/{name}.asked\nprintf "{text}"\n')
        script.chmod(0o755)
    other_process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        machine, start = ownership.get_machine_id(), ownership.get_process_start(other_process.pid) or ""
        slurm = "llmrl.sweeps.backends.slurm_submission.Slurm"
        for i, job_id in enumerate(("--user=root", "--state=RUNNING", "1 2", "1_[0-9]", "")):
            run = folder / "outputs" / "study" / "defaults-00000000" / f"s{i}"
            run.mkdir(parents=True)
            LaunchRecord(
                slurm if job_id else "", 0, job_id, machine, other_process.pid, start, "here", str(folder), "",
                "elsewhere", "ada", 0.0, "", [],
            ).write(run)  # fmt: skip
        owned_run = folder / "outputs" / "study" / "defaults-00000000" / "s9"
        owned_run.mkdir()
        Status("running", pid=other_process.pid).write(owned_run)
        owner = ownership.Owner("here", machine, other_process.pid, start, 1, "", 0, "token")
        (owned_run / "owner.json").write_text(json.dumps(vars(owner)))
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        code, message = run_command(folder, "cancel", "outputs", name="llmrl-sweep", PATH=path)
        passed = code == 1 and message.count("not reached") == 6 and "Traceback" not in message
        passed &= not (folder / "scancel.asked").exists() and other_process.poll() is None
        return passed, get_last_lines(message)
    finally:
        other_process.kill()
        other_process.wait()


@attack("IDs of canceled SLURM arrays in 5 formats", "expanded to the IDs of their tasks")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.sweeps.backends.slurm_submission import expand_array_job_ids

    found = [expand_array_job_ids(text) for text in ("1", "1_2", "1_[0-2]", "1_[0,4-5%7]", "1_[9%1]")]
    expected = [["1"], ["1_2"], ["1_0", "1_1", "1_2"], ["1_0", "1_4", "1_5"], ["1_9"]]
    return found == expected, str(found)


if __name__ == "__main__":
    main("Injected faults and corrupted run folders")
