"""Confidentiality of keys and passwords in configs, files, names and terminal output, and privacy of run folders.

Each attack searches all files and all output of a command for a test key and a test password (canaries), in full and in
halves.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from attack import attack, main

from llmrl.core.secrets import redact, redact_code

KEY = "sk-canary-Zq3vXw81LkTn0PfYb7RdUe"
WORD = "correct.horse.battery"
"""Password that does not have the format of a key."""
CANARIES = (KEY[: len(KEY) // 2].encode(), KEY[len(KEY) // 2 :].encode(), WORD.encode())
GAME = (
    *("env=escape_room", "env.n_envs=4", "principal=llm", "design.steps=2", "design.references=0"),
    *(
        "design.adapt_rounds=0",
        "design.validate_episodes=4",
        "design.confirm_steps=0",
        "design.evaluations=0",
        "output_root=outputs",
    ),
    *("llm.retry.initial_delay=0.001", "llm.retry.retries=2"),
)
SERVER = ("llm=openai_compatible", "llm.model=m")


class CommandResult(NamedTuple):
    """Exit code and output of a command."""

    code: int
    text: str


def run_command(folder: Path, module: str, *arguments: str, **environment: str) -> CommandResult:
    """Run a command of llmrl with full tracebacks."""
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_KEY")}
    process = subprocess.run(
        [sys.executable, "-c", f"from {module} import main; main()", *arguments],
        cwd=folder,
        env={**clean, "HYDRA_FULL_ERROR": "1", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return CommandResult(process.returncode, process.stdout + process.stderr)


def train(folder: Path, *arguments: str, **environment: str) -> CommandResult:
    # Hydra requires flags before overrides.
    flags = [argument for argument in arguments if argument.startswith("--")]
    return run_command(
        folder, "llmrl.cli.train", *flags, *GAME, *(a for a in arguments if a not in flags), **environment
    )


def run_in_process(folder: Path, override: str, **environment: str) -> CommandResult:
    """Run `llmrl-train` in this process, for commands that are rejected immediately."""
    from llmrl.cli.train import main as start

    argv, variables, cwd, umask, out = sys.argv, dict(os.environ), Path.cwd(), os.umask(0o022), io.StringIO()
    code = 0
    try:
        os.chdir(folder)
        os.environ.update(environment)
        sys.argv = ["llmrl-train", *GAME, *SERVER, override]
        with redirect_stdout(out), redirect_stderr(out):
            start()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(cwd)
        os.umask(umask)
    return CommandResult(code, out.getvalue())


def find_leaks(folder: Path, text: str = "", excluded: str = "conf") -> list[str]:
    """Return the locations that contain a part of a canary, except in the excluded folder."""
    leaks = ["terminal"] if any(piece in text.encode() for piece in CANARIES) else []
    for path in folder.rglob("*"):
        if excluded in path.relative_to(folder).parts:
            continue
        if any(piece in str(path.relative_to(folder)).encode() for piece in CANARIES):
            leaks.append(f"name of {path.name}")
        elif path.is_file() and any(piece in path.read_bytes() for piece in CANARIES):
            leaks.append(path.name)
    return leaks


def check_rejection(folder: Path, result: CommandResult, message: str) -> tuple[bool, str]:
    """Return whether a command was rejected with a message, without leaks and without an output folder."""
    leaks = find_leaks(folder, result.text)
    has_output = (folder / "outputs").exists()
    line = next((line for line in result.text.splitlines() if message in line), result.text.strip()[-100:])
    passed = result.code == 1 and message in result.text and not leaks and not has_output
    return passed, f"leaks {leaks}; {line[:110]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Callable[[_Handler], bytes]
    requests: list[tuple[str, dict[str, str]]]

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send(b'{"data": []}', 200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append((self.path, dict(self.headers)))
        data = type(self).answer(self)
        self._send(data, 400 if data.startswith(b"!") else 200)

    def _send(self, data: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def run_server(answer: Callable[[_Handler], bytes]) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """Run a chat server, and yield its URL and the paths and headers of its requests."""
    handler_class = type("AnsweringHandler", (_Handler,), {"answer": answer, "requests": []})
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler_class)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", handler_class.requests  # type: ignore[attr-defined]
    finally:
        http.shutdown()
        http.server_close()


def make_completion(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": text[:80]}], "usage": {}}).encode()


def _register_override(name: str, override: str, message: str, **environment: str) -> None:
    @attack(f"override: {name}", "rejected with the key of the option; no file, no echo")
    def _(folder: Path) -> tuple[bool, str]:
        return check_rejection(folder, run_in_process(folder, override, **environment), message)


_register_override(
    "base_url with ?api_key=", f"llm.base_url=http://127.0.0.1:1/v1?api_key={WORD}", "llm.base_url holds"
)
_register_override(
    "base_url with a percent-encoded name", f"llm.base_url=http://127.0.0.1:1/v1?api%5Fkey={WORD}", "llm.base_url holds"
)
_register_override("base_url with u:pw@host", f"llm.base_url=http://u:{WORD}@127.0.0.1:1/v1", "llm.base_url holds")
_register_override(
    "base_url with a token and no password", f"llm.base_url=https://{WORD}@127.0.0.1:1/v1", "llm.base_url holds"
)
_register_override("u:pw@host without http://", f"llm.base_url=u:{WORD}@127.0.0.1:1/v1", "llm.base_url holds")
_register_override("a password with @ in it", f"llm.base_url=http://u:a@{WORD}@127.0.0.1:1/v1", "llm.base_url holds")
_register_override("base_url with ?k=", f"llm.base_url='http://127.0.0.1:1/v1?k={WORD}'", "llm.base_url holds")
_register_override("base_url with ;key=", f"llm.base_url='http://127.0.0.1:1/v1;key={WORD}'", "llm.base_url holds")
_register_override("base_url with #", f"llm.base_url='http://127.0.0.1:1/v1#{WORD}'", "llm.base_url holds")
_register_override("api_base with ?k=", f"+llm.api_base='https://host/v1?k={WORD}'", "llm.api_base holds")
_register_override(
    "tracking_uri with ?k=", f"+loggers.mlflow.tracking_uri='https://host?k={WORD}'", "tracking_uri holds"
)
_register_override("api_key_env=<the key>", f"llm.api_key_env={KEY}", "llm.api_key_env must name")
_register_override("api_key_env=<a password>", f"llm.api_key_env={WORD}", "llm.api_key_env must name")
_register_override(
    "oc.env of OPENAI_API_KEY", "llm.model=${oc.env:OPENAI_API_KEY}", "OPENAI_API_KEY", OPENAI_API_KEY=KEY
)
_register_override("oc.env in an option's name", "llm=${oc.env:OPENAI_API_KEY}", "OPENAI_API_KEY", OPENAI_API_KEY=KEY)
_register_override(
    "oc.env nested in oc.decode", "name=${oc.decode:${oc.env:DB_PASSWORD}}", "DB_PASSWORD", DB_PASSWORD=WORD
)
_register_override("oc.env of a name worked out", "name=${oc.env:${env.name}}", "not plain")
_register_override("name=<the key>", f"name={KEY}", "name holds")
_register_override("a mistyped field", f"llm.api_kye={KEY}", "llm.api_kye holds")
_register_override(
    "the value of a variable, split over a list", f"learn.mechanism=[1,{WORD}]", "learn.mechanism", MY_SECRET=WORD
)
_register_override("an appended field called password", f"+env.kwargs.password={WORD}", "env.kwargs.password holds")
_register_override("hydra.job.env_set", f"hydra.job.env_set.OPENAI_API_KEY={WORD}", "OPENAI_API_KEY holds")
_register_override(
    "a setup line of SLURM", f"hardware.backend.setup=['export OPENAI_API_KEY={WORD}']", "hardware.backend.setup holds"
)
_register_override("a key as a bare argument", KEY, "argument")
_register_override("a sweep over keys", f"llm.model=m,{KEY}", "llm.model holds")


def _write_option(folder: Path, **fields: Any) -> None:
    option_folder = folder / "conf" / "llm"
    option_folder.mkdir(parents=True)
    option = {"_target_": "llmrl.llms.openai_compatible.OpenAICompatibleChat", "base_url": "http://127.0.0.1:1/v1"}
    # JSON is YAML.
    (option_folder / "mine.yaml").write_text(json.dumps({**option, "model": "m", **fields}))


def _register_option_file(name: str, message: str, environment: dict[str, str], **fields: Any) -> None:
    @attack(f"in an option file: {name}", "rejected with the key of the option; no file, no echo")
    def _(folder: Path) -> tuple[bool, str]:
        _write_option(folder, **fields)
        result = train(folder, f"--config-dir={folder / 'conf'}", "llm=mine", **environment)
        return check_rejection(folder, result, message)


_register_option_file("oc.env", "llm.model reads", {"A_TOKEN": WORD}, model="${oc.env:A_TOKEN}")
_register_option_file("a URL with a password", "llm.base_url holds", {}, base_url=f"http://u:{WORD}@127.0.0.1:1/v1")
_register_option_file("a key for api_key_env", "llm.api_key_env must", {}, api_key_env=KEY)


@attack("--cfg job --resolve of an option file that reads a key", "printed as <redacted>")
def _(folder: Path) -> tuple[bool, str]:
    _write_option(folder, model="${oc.env:OPENAI_API_KEY}")
    arguments = (f"--config-dir={folder / 'conf'}", "llm=mine", "--cfg=job", "--resolve")
    result = train(folder, *arguments, OPENAI_API_KEY=KEY)
    leaks = find_leaks(folder, result.text)
    return "<redacted>" in result.text and not leaks, f"leaks {leaks}"


@attack("a server that returns the key in replies, finish reasons and the final error", "redacted everywhere")
def _(folder: Path) -> tuple[bool, str]:
    turn = iter(range(100))

    def answer(handler: _Handler) -> bytes:
        authorization = handler.headers["Authorization"]
        return (
            b"!" + authorization.encode()
            if next(turn) == 3
            else make_completion(f"{'x' * 60} you sent {authorization}")
        )

    with run_server(answer) as (url, requests):
        result = train(folder, *SERVER, f"llm.base_url={url}", "llm.api_key_env=LAB", "hydra.verbose=true", LAB=KEY)
    leaks = find_leaks(folder, result.text)
    ledger = next((folder / "outputs").rglob("llm_calls.jsonl")).read_text()
    passed = (
        result.code == 1 and not leaks and "<redacted>" in ledger and requests[0][1]["Authorization"] == f"Bearer {KEY}"
    )
    return passed, f"exit {result.code}, leaks {leaks}, {ledger.count('<redacted>')} redacted in the call log"


@attack("a server that returns the key in Base64 and in other letter cases", "redacted everywhere")
def _(folder: Path) -> tuple[bool, str]:
    variants = [base64.b64encode(b"x" * n + f"Bearer {KEY}:y".encode()).decode() for n in range(3)]
    variants += [base64.urlsafe_b64encode(KEY.encode()).decode(), KEY.upper(), KEY.lower(), KEY.swapcase()]
    turn = iter(range(100))

    def answer(handler: _Handler) -> bytes:
        return b"!" + " ".join(variants).encode() if next(turn) == 3 else make_completion(" ".join(variants))

    with run_server(answer) as (url, requests):
        result = train(folder, *SERVER, f"llm.base_url={url}", "llm.api_key_env=LAB", "hydra.verbose=true", LAB=KEY)
    # Parts of the key in each encoding.
    pieces = [KEY[8:20].upper().encode(), KEY[8:20].lower().encode(), KEY[8:20].swapcase().encode()]
    pieces += [base64.b64encode(KEY.encode()[n:])[4:24] for n in range(3)]
    written = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    leaks = [name for name, data in written.items() if any(piece in data for piece in pieces)]
    printed = any(piece in result.text.encode() for piece in pieces)
    return bool(requests) and result.code == 1 and not leaks and not printed, f"exit {result.code}, leaks {leaks}"


@attack("a preset that reads a password into names, paths and options", "used, and redacted in all files")
def _(folder: Path) -> tuple[bool, str]:
    path = folder / "conf" / "experiment" / "nice.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        "# @package _global_\nname: x-${oc.env:DB_PASS}\noutput_root: outputs/${oc.env:DB_PASS}\n"
        "llm: {model: '${oc.env:DB_PASS}', cache_dir: '${output_root}/${oc.env:DB_PASS}'}\n"
    )
    game = [override for override in GAME if not override.startswith("output_root")]
    leaks, codes = [], []
    for more in ((), ("seed=1,2", "--multirun")):
        with run_server(lambda handler: make_completion("hello")) as (url, requests):
            options = (f"--config-dir={folder / 'conf'}", *game, "llm=openai_compatible", f"llm.base_url={url}")
            result = run_command(folder, "llmrl.cli.train", *options, "+experiment=nice", *more, DB_PASS=WORD)
        leaks += find_leaks(folder, result.text)
        codes += [result.code, bool(requests)]
    return not leaks and codes == [0, True, 0, True], f"{codes}, leaks {leaks}"


@attack("replies with the value of another variable, also JSON-escaped and URL-encoded", "redacted everywhere")
def _(folder: Path) -> tuple[bool, str]:
    hard = 'correct.horse."battery"/staple'
    spelled = [hard, json.dumps(hard), "http://h/?q=correct.horse.%22battery%22%2Fstaple"]
    with run_server(lambda handler: make_completion(" ".join(spelled))) as (url, _):
        result = train(folder, *SERVER, f"llm.base_url={url}", "llm.failures=fall_back", THEIR_PASSWORD=hard)
    leaks = [path.name for path in folder.rglob("*") if path.is_file() and b"correct.horse" in path.read_bytes()]
    return not leaks and "correct.horse" not in result.text, f"exit {result.code}, leaks {leaks}"


@attack("a sweep with a server that returns the key", "no leaks in job logs, records, pickles and the final table")
def _(folder: Path) -> tuple[bool, str]:
    with run_server(lambda handler: b"!" + handler.headers["Authorization"].encode()) as (url, requests):
        options = (*SERVER, f"llm.base_url={url}", "llm.api_key_env=OPENAI_API_KEY", "seed=0,1", "--multirun")
        result = train(folder, *options, OPENAI_API_KEY=KEY)
    leaks, logs = find_leaks(folder, result.text), list((folder / "outputs").rglob("*.log"))
    readable = [p.name for p in (folder / "outputs").rglob("*") if stat.S_IMODE(p.stat().st_mode) & 0o077]
    passed = bool(requests) and not leaks and len(logs) >= 2 and not readable
    return passed, f"{len(logs)} logs, leaks {leaks}, readable by others {readable}"


@attack("llmrl-llm check and llmrl-sweep with a key in an argument", "rejected or redacted")
def _(folder: Path) -> tuple[bool, str]:
    check = run_command(folder, "llmrl.cli.llm", "check", "llm=ollama", f"llm.base_url=http://u:{WORD}@127.0.0.1:1/v1")
    status = run_command(folder, "llmrl.cli.sweep", "status", f"nosuch/{KEY}", OPENAI_API_KEY=KEY)
    text = check.text + status.text
    return check.code == status.code == 1 and not find_leaks(folder, text), f"leaks {find_leaks(folder, text)}"


def _read_modes(root: Path) -> set[str]:
    return {oct(stat.S_IMODE(path.stat().st_mode)) for path in (root, *root.rglob("*"))}


@attack("umask 000: permissions of a run, its cache and its parent folders", "only the owner has access")
def _(folder: Path) -> tuple[bool, str]:
    previous = os.umask(0)
    try:
        with run_server(lambda handler: make_completion("hello")) as (url, _):
            result = train(folder, *SERVER, f"llm.base_url={url}")
    finally:
        os.umask(previous)
    modes = _read_modes(folder / "outputs")
    cached = any((folder / "outputs" / "llm_cache").rglob("*.json"))
    return result.code == 0 and cached and modes == {"0o700", "0o600"}, f"exit {result.code}, {sorted(modes)}"


@attack("umask 027 and private=false", "permissions follow the umask, also in processes of a sweep")
def _(folder: Path) -> tuple[bool, str]:
    previous = os.umask(0o027)
    try:
        result = train(folder, "llm=scripted", "private=false", "seed=0,1", "--multirun")
    finally:
        os.umask(previous)
    modes = _read_modes(folder / "outputs")
    return result.code == 0 and modes == {"0o750", "0o640"}, f"exit {result.code}, {sorted(modes)}"


@attack("the Python interface: Run.open with a key in config or overrides", "rejected, no folder")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.core.errors import ConfigError
    from llmrl.run.run import Run

    messages = []
    for config, overrides in (({"llm": [{"a": f"x {KEY}"}]}, []), ({KEY: 1}, []), ({}, [f"a.b={KEY}"])):
        try:
            Run.open(folder, "name", config, overrides)
        except ConfigError as error:
            messages.append(str(error))
    passed = len(messages) == 3 and not find_leaks(folder, " ".join(messages)) and not list(folder.iterdir())
    return passed, f"{len(messages)} rejected"


@attack("an error of the loop that contains a key", "not in traceback.txt, status.json and run.log")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.run.run import Run

    try:
        with Run.open(folder, "name", {}):
            raise ValueError(f"header was Authorization: Bearer {KEY}, url https://u:{WORD}@host/x?token={WORD}")
    except ValueError:
        pass
    text = next(folder.rglob("traceback.txt")).read_text()
    return "<redacted>" in text and not find_leaks(folder), f"leaks {find_leaks(folder)}"


@attack("the recorded command line (provenance) with --api-key VALUE", "redacted")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.run.provenance import write_provenance

    previous, sys.argv = sys.argv, ["x", "--api-key", WORD, f"--password={WORD}", KEY]
    try:
        write_provenance(folder, 1)
    finally:
        sys.argv = previous
    return not find_leaks(folder), (folder / "provenance.json").read_text().count("<redacted>").__str__() + " redacted"


@attack("100 kB of repeated patterns of keys, 8 patterns", "linear time: less than 2 s each")
def _(folder: Path) -> tuple[bool, str]:
    import time

    slowest = 0.0
    for piece in ("://", "?a=", "&key", "bearer ", "sk-", "eyJ.", "api_key.", "-----BEGIN PRIVATE KEY-----"):
        start = time.process_time()
        redact_code((piece * 100_000)[:100_000])
        slowest = max(slowest, time.process_time() - start)
    return slowest < 2, f"slowest {slowest:.3f} s"


@attack("false positives: hashes, names of models and runs, base64 images, UUIDs", "all unchanged")
def _(folder: Path) -> tuple[bool, str]:
    import hashlib
    import random
    import uuid

    draw = random.Random(0)
    texts = [
        "Qwen/Qwen2.5-0.5B-Instruct",
        "sk-learn-baseline-v2",
        "risk-neutral-agents-2026",
        "hf-internal-testing/tiny",
    ]
    for _ in range(300):
        data = draw.randbytes(24)
        texts += [hashlib.sha256(data).hexdigest(), str(uuid.UUID(bytes=data[:16])), base64.b32encode(data).decode()]
        texts += [repr(draw.random()), f"principal=ucb,env.n_envs={draw.randrange(999)}-{data.hex()[:8]}"]
    variants = [text for text in texts if redact(text) != text or redact_code(text) != text]
    return not variants, f"{len(texts)} texts, changed {variants[:3]}"


@attack("the pickled job of a sweep if a key is in the environment", "contains no key")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.experiment.run_job import compute_job
    from llmrl.sweeps.payload import RunPayload

    os.environ["OPENAI_API_KEY"] = KEY
    try:
        (folder / "work.pkl").write_bytes(
            pickle.dumps(RunPayload(compute_job, {"llm": {}}, [], folder, {"OMP_NUM_THREADS": "1"}))
        )
    finally:
        del os.environ["OPENAI_API_KEY"]
    return not find_leaks(folder), f"leaks {find_leaks(folder)}"


if __name__ == "__main__":
    main("Confidentiality of secrets and privacy of runs")
