"""Commands of tests are processes like any other, but for how they begin."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import commands
import llmrl

PROBE = """
import json, logging, os, random, signal, sys, threading
import __main__
print(json.dumps({
    "arguments": sys.argv,
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "umask": os.umask(0),
    "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "default": all(signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1)),
    "pipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN,
    "main": (__main__.__name__, sorted(set(vars(__main__)) & {"json", "serve"})),
    "handlers": len(logging.getLogger().handlers),
    "threads": threading.active_count(),
    "open": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:4],
    "random": random.random(),
    "input": sys.stdin.read(),
    "version": __import__("llmrl").__version__,
}))
"""


def program(code, *arguments):
    return [sys.executable, "-c", code, *arguments]


def probe(start, tmp_path, **options):
    environment = {**os.environ, "ONE": "a=ä", "HOME": "/nowhere"}
    environment.pop("PATH")
    options = {"cwd": tmp_path, "env": environment, "input": "said\n", "capture_output": True, "text": True, **options}
    done = start(program(PROBE, "a b", "ä"), **options)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_command_receives_process_environment(tmp_path, monkeypatch):
    """Everything but the numbers that are drawn, as by `subprocess`; nothing that the test has changed in itself."""
    monkeypatch.setattr(llmrl, "__version__", "changed")
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        in_process = probe(commands.run, tmp_path, umask=0o27)
    finally:
        signal.signal(signal.SIGINT, previous)
    in_subprocess = probe(subprocess.run, tmp_path, umask=0o27, start_new_session=True)
    assert in_process.pop("random") != in_subprocess.pop("random")
    for report in (in_process, in_subprocess):
        report["environment"].pop("LC_CTYPE", None)
    assert in_process == in_subprocess
    assert in_process["version"] != "changed" and in_process["umask"] == 0o27 and in_process["input"] == "said\n"


def test_commands_do_not_share_state():
    code = "import random, numpy, llmrl\nprint(random.random(), numpy.random.rand(), llmrl.__version__)"
    code += "\nllmrl.__version__ = 0"
    first, second = (commands.run(program(code), capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first.split()[2] == second.split()[2] == llmrl.__version__
    assert not {*first.split()[:2]} & {*second.split()[:2]}


@pytest.mark.parametrize(
    ("code", "returncode", "message"),
    [
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(300)", 300 & 255, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("import atexit, sys; atexit.register(print, 'bye', file=sys.stderr); sys.exit(3)", 3, "bye\n"),
        ("import threading, time, sys\ndef f():\n time.sleep(0.2); print('late', file=sys.stderr)\n"
         "threading.Thread(target=f).start()", 0, "late\n"),
    ],
)  # fmt: skip
def test_command_exit_matches_process(code, returncode, message):
    outputs = []
    for start in (subprocess.run, commands.run):
        done = start(program(f"print('out', end='')\n{code}"), capture_output=True, text=True)
        assert done.returncode == returncode and done.stderr.endswith(message) and bool(done.stderr) == bool(message)
        outputs.append(done.stdout)  # or not, where it ends without a word
    assert outputs[0] == outputs[1]


def test_modules_and_scripts(tmp_path):
    (tmp_path / "mine.py").write_text("import sys\nprint(__name__, __file__, sys.argv, sys.path[0])")
    for args in ([sys.executable, "-m", "mine", "a"], [sys.executable, tmp_path / "mine.py", "a"]):
        outputs = [f(args, cwd=tmp_path, capture_output=True, text=True).stdout for f in (subprocess.run, commands.run)]
        assert outputs[0] == outputs[1] and outputs[0].startswith("__main__")
    script = str(Path(sys.executable).parent / "llmrl-train")
    done = commands.run([script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "llmrl" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signal_terminates_command(number):
    process = commands.Popen(
        program("print('ready', flush=True)\nwhile True: pass"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout.readline() == b"ready\n" and process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.send_signal(number)
    assert process.wait(20) == -number == process.poll()
    assert not Path(f"/proc/{process.pid}").exists()
    process.stdout.close()


def test_run_kills_command_on_timeout(tmp_path):
    path = tmp_path / "pid"
    code = f"import os, time; open({str(path)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(subprocess.TimeoutExpired):
        commands.run(program(code), timeout=2)
    while path.exists() and Path(f"/proc/{path.read_text()}").exists():
        time.sleep(0.01)


def test_streams_can_be_files(tmp_path):
    code = "import sys; print('a', flush=True); print('b', file=sys.stderr)"
    done = commands.run(program(code), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.stdout == b"a\nb\n"
    with (tmp_path / "out").open("w") as out:
        commands.run(program(code), stdout=out, stderr=subprocess.DEVNULL)
    assert (tmp_path / "out").read_text() == "a\n"


def test_fork_server_inherits_launcher_environment(tmp_path):
    """`multiprocessing` starts it as ever, and it forks processes that know what it knew."""
    (tmp_path / "launch.py").write_text(
        "import multiprocessing, os, sys\n"
        "def work(): print(os.environ['ONE'], os.getcwd(), os.getppid() != int(os.environ['PARENT']), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    os.environ |= {'ONE': 'set late', 'PARENT': str(os.getpid())}\n"
        "    process = multiprocessing.get_context('forkserver').Process(target=work)\n"
        "    process.start(); process.join(); sys.exit(process.exitcode)\n"
    )
    args = [sys.executable, "-m", "launch", "--multirun"]
    for start in (subprocess.run, commands.run):
        done = start(args, cwd=tmp_path, env={**os.environ, "ONE": "1"}, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"set late {tmp_path} True\n", "")


def call_later(path, *words):
    time.sleep(float(words[0]))
    Path(path).write_text(" ".join(words))


def test_function_runs_in_process(tmp_path):
    process = commands.Process(target=call_later, args=(tmp_path / "a", "0.01", "b"))
    with pytest.raises(AssertionError, match="started"):
        process.is_alive()
    process.start()
    process.join()
    assert (process.exitcode, process.is_alive()) == (0, False) and (tmp_path / "a").read_text() == "0.01 b"
    process = commands.Process(target=call_later, args=(tmp_path / "b", "600"))
    process.start()
    process.join(timeout=0.1)
    assert process.exitcode is None and process.is_alive()
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL and not (tmp_path / "b").exists()
    process = commands.Process(target=call_later, args=(tmp_path / "no" / "folder", "0"))
    process.start()
    process.join()
    assert process.exitcode == 1


def test_interpreter_variables_raise():
    for name in ("PYTHONPATH", "PYTHONHASHSEED", "OMP_NUM_THREADS"):
        with pytest.raises(ValueError, match=f"{name}: "):
            commands.run(program("pass"), env={**os.environ, name: "7"})
    with pytest.raises(ValueError, match="subprocess"):
        commands.run(program("pass"), preexec_fn=print)
    with pytest.raises(FileNotFoundError):
        commands.run(program("pass"), cwd="/no/such/folder")


def test_test_exit_terminates_commands(tmp_path):
    """The server detects the exit by its socket."""
    code = (
        "import commands, os, subprocess, sys\n"
        "commands.PRELOADED_MODULES = ()\n"
        "process = commands.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(process.pid, os.getpid(), flush=True)\nos.kill(os.getpid(), 9)"
    )
    done = subprocess.run(program(code), capture_output=True, text=True)
    pid = done.stdout.split()[0]
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
