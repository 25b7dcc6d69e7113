"""Attacks on keys and passwords: every way one gets into a config, a file, a name or the terminal; and on privacy.

One canary is looked for, whole and in halves, in all that is written and printed. The commands are the real ones.
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
"""A password that has no form of a key."""
PIECES = (KEY[: len(KEY) // 2].encode(), KEY[len(KEY) // 2 :].encode(), WORD.encode())
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


class Ended(NamedTuple):
    """A command that is over."""

    code: int
    text: str


def command(folder: Path, module: str, *arguments: str, **environment: str) -> Ended:
    """Run one of llmrl's commands with all detail that it can print."""
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_KEY")}
    done = subprocess.run(
        [sys.executable, "-c", f"from {module} import main; main()", *arguments],
        cwd=folder,
        env={**clean, "HYDRA_FULL_ERROR": "1", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ended(done.returncode, done.stdout + done.stderr)


def train(folder: Path, *arguments: str, **environment: str) -> Ended:
    # Hydra takes flags before overrides only.
    flags = [argument for argument in arguments if argument.startswith("--")]
    return command(folder, "llmrl.cli.train", *flags, *GAME, *(a for a in arguments if a not in flags), **environment)


def typed(folder: Path, override: str, **environment: str) -> Ended:
    """Run `train` in this process, for commands that are refused immediately."""
    from llmrl.cli.train import main as start

    before, place, umask, out = (sys.argv, dict(os.environ)), Path.cwd(), os.umask(0o022), io.StringIO()
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
        sys.argv = before[0]
        os.environ.clear()
        os.environ.update(before[1])
        os.chdir(place)
        os.umask(umask)
    return Ended(code, out.getvalue())


def leaks(folder: Path, text: str = "", but: str = "conf") -> list[str]:
    """Return the places that contain a piece of the canary, except folders that the attacker wrote."""
    found = ["terminal"] if any(piece in text.encode() for piece in PIECES) else []
    for path in folder.rglob("*"):
        if but in path.relative_to(folder).parts:
            continue
        if any(piece in str(path.relative_to(folder)).encode() for piece in PIECES):
            found.append(f"name of {path.name}")
        elif path.is_file() and any(piece in path.read_bytes() for piece in PIECES):
            found.append(path.name)
    return found


def verdict(folder: Path, ended: Ended, says: str, started: bool = False) -> tuple[bool, str]:
    """Return whether a command was refused with these words and left nothing behind."""
    found = leaks(folder, ended.text)
    left = (folder / "outputs").exists()
    last = next((line for line in ended.text.splitlines() if says in line), ended.text.strip()[-100:])
    return ended.code == 1 and says in ended.text and not found and left == started, f"leaks {found}; {last[:110]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Callable[[_Handler], bytes]
    seen: list[tuple[str, dict[str, str]]]

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send(b'{"data": []}', 200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, dict(self.headers)))
        data = type(self).answer(self)
        self._send(data, 400 if data.startswith(b"!") else 200)

    def _send(self, data: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def server(answer: Callable[[_Handler], bytes]) -> Iterator[tuple[str, list[tuple[str, dict[str, str]]]]]:
    """Yield the address of a chat server, and the paths and headers of its requests."""
    kind = type("Own", (_Handler,), {"answer": answer, "seen": []})
    http = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", kind.seen  # type: ignore[attr-defined]
    finally:
        http.shutdown()
        http.server_close()


def completion(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": text[:80]}], "usage": {}}).encode()


def _typed(name: str, override: str, says: str, **environment: str) -> None:
    @attack(f"typed: {name}", "refused by its place; no file, no echo")
    def _(folder: Path) -> tuple[bool, str]:
        return verdict(folder, typed(folder, override, **environment), says)


_typed("base_url with ?api_key=", f"llm.base_url=http://127.0.0.1:1/v1?api_key={WORD}", "llm.base_url holds")
_typed(
    "base_url with a percent-encoded name", f"llm.base_url=http://127.0.0.1:1/v1?api%5Fkey={WORD}", "llm.base_url holds"
)
_typed("base_url with u:pw@host", f"llm.base_url=http://u:{WORD}@127.0.0.1:1/v1", "llm.base_url holds")
_typed("base_url with a token and no password", f"llm.base_url=https://{WORD}@127.0.0.1:1/v1", "llm.base_url holds")
_typed("u:pw@host without http://", f"llm.base_url=u:{WORD}@127.0.0.1:1/v1", "llm.base_url holds")
_typed("a password with @ in it", f"llm.base_url=http://u:a@{WORD}@127.0.0.1:1/v1", "llm.base_url holds")
_typed("base_url with ?k=", f"llm.base_url='http://127.0.0.1:1/v1?k={WORD}'", "llm.base_url holds")
_typed("base_url with ;key=", f"llm.base_url='http://127.0.0.1:1/v1;key={WORD}'", "llm.base_url holds")
_typed("base_url with #", f"llm.base_url='http://127.0.0.1:1/v1#{WORD}'", "llm.base_url holds")
_typed("api_base with ?k=", f"+llm.api_base='https://host/v1?k={WORD}'", "llm.api_base holds")
_typed("tracking_uri with ?k=", f"+loggers.mlflow.tracking_uri='https://host?k={WORD}'", "tracking_uri holds")
_typed("api_key_env=<the key>", f"llm.api_key_env={KEY}", "llm.api_key_env must name")
_typed("api_key_env=<a password>", f"llm.api_key_env={WORD}", "llm.api_key_env must name")
_typed("oc.env of OPENAI_API_KEY", "llm.model=${oc.env:OPENAI_API_KEY}", "OPENAI_API_KEY", OPENAI_API_KEY=KEY)
_typed("oc.env in an option's name", "llm=${oc.env:OPENAI_API_KEY}", "OPENAI_API_KEY", OPENAI_API_KEY=KEY)
_typed("oc.env nested in oc.decode", "name=${oc.decode:${oc.env:DB_PASSWORD}}", "DB_PASSWORD", DB_PASSWORD=WORD)
_typed("oc.env of a name worked out", "name=${oc.env:${env.name}}", "not plain")
_typed("name=<the key>", f"name={KEY}", "name holds")
_typed("a mistyped field", f"llm.api_kye={KEY}", "llm.api_kye holds")
_typed("the value of a variable, split over a list", f"learn.mechanism=[1,{WORD}]", "learn.mechanism", MY_SECRET=WORD)
_typed("an appended field called password", f"+env.kwargs.password={WORD}", "env.kwargs.password holds")
_typed("hydra.job.env_set", f"hydra.job.env_set.OPENAI_API_KEY={WORD}", "OPENAI_API_KEY holds")
_typed(
    "a setup line of SLURM", f"hardware.backend.setup=['export OPENAI_API_KEY={WORD}']", "hardware.backend.setup holds"
)
_typed("a key as a bare argument", KEY, "argument")
_typed("a sweep over keys", f"llm.model=m,{KEY}", "llm.model holds")


def _own_option(folder: Path, **fields: Any) -> None:
    place = folder / "conf" / "llm"
    place.mkdir(parents=True)
    option = {"_target_": "llmrl.llms.openai_compatible.OpenAICompatibleChat", "base_url": "http://127.0.0.1:1/v1"}
    # JSON is YAML.
    (place / "mine.yaml").write_text(json.dumps({**option, "model": "m", **fields}))


def _in_a_file(name: str, says: str, environment: dict[str, str], **fields: Any) -> None:
    @attack(f"in an option file: {name}", "refused by its place; no file, no echo")
    def _(folder: Path) -> tuple[bool, str]:
        _own_option(folder, **fields)
        return verdict(folder, train(folder, f"--config-dir={folder / 'conf'}", "llm=mine", **environment), says)


_in_a_file("oc.env", "llm.model reads", {"A_TOKEN": WORD}, model="${oc.env:A_TOKEN}")
_in_a_file("a URL with a password", "llm.base_url holds", {}, base_url=f"http://u:{WORD}@127.0.0.1:1/v1")
_in_a_file("a key for api_key_env", "llm.api_key_env must", {}, api_key_env=KEY)


@attack("--cfg job --resolve of a file that reads a key", "printed as <redacted>")
def _(folder: Path) -> tuple[bool, str]:
    _own_option(folder, model="${oc.env:OPENAI_API_KEY}")
    arguments = (f"--config-dir={folder / 'conf'}", "llm=mine", "--cfg=job", "--resolve")
    ended = train(folder, *arguments, OPENAI_API_KEY=KEY)
    return "<redacted>" in ended.text and not leaks(folder, ended.text), f"leaks {leaks(folder, ended.text)}"


@attack(
    "a server that quotes the key in replies, finish reasons and the error that ends the run", "redacted everywhere"
)
def _(folder: Path) -> tuple[bool, str]:
    turn = iter(range(100))

    def answer(handler: _Handler) -> bytes:
        given = handler.headers["Authorization"]
        return b"!" + given.encode() if next(turn) == 3 else completion(f"{'x' * 60} you sent {given}")

    with server(answer) as (url, seen):
        ended = train(folder, *SERVER, f"llm.base_url={url}", "llm.api_key_env=LAB", "hydra.verbose=true", LAB=KEY)
    found = leaks(folder, ended.text)
    ledger = next((folder / "outputs").rglob("llm_calls.jsonl")).read_text()
    held = ended.code == 1 and not found and "<redacted>" in ledger and seen[0][1]["Authorization"] == f"Bearer {KEY}"
    return held, f"exit {ended.code}, leaks {found}, {ledger.count('<redacted>')} redacted in the call log"


@attack("a server that quotes the key in Base64 and in other letter cases", "redacted everywhere")
def _(folder: Path) -> tuple[bool, str]:
    changed = [base64.b64encode(b"x" * n + f"Bearer {KEY}:y".encode()).decode() for n in range(3)]
    changed += [base64.urlsafe_b64encode(KEY.encode()).decode(), KEY.upper(), KEY.lower(), KEY.swapcase()]
    turn = iter(range(100))

    def answer(handler: _Handler) -> bytes:
        return b"!" + " ".join(changed).encode() if next(turn) == 3 else completion(" ".join(changed))

    with server(answer) as (url, seen):
        ended = train(folder, *SERVER, f"llm.base_url={url}", "llm.api_key_env=LAB", "hydra.verbose=true", LAB=KEY)
    # Pieces of the middle of the key, in each form.
    pieces = [KEY[8:20].upper().encode(), KEY[8:20].lower().encode(), KEY[8:20].swapcase().encode()]
    pieces += [base64.b64encode(KEY.encode()[n:])[4:24] for n in range(3)]
    written = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = [name for name, data in written.items() if any(piece in data for piece in pieces)]
    printed = any(piece in ended.text.encode() for piece in pieces)
    return bool(seen) and ended.code == 1 and not found and not printed, f"exit {ended.code}, leaks {found}"


@attack("a preset that reads a password into names, paths and fields", "used, and redacted in all that is written")
def _(folder: Path) -> tuple[bool, str]:
    path = folder / "conf" / "experiment" / "nice.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        "# @package _global_\nname: x-${oc.env:DB_PASS}\noutput_root: outputs/${oc.env:DB_PASS}\n"
        "llm: {model: '${oc.env:DB_PASS}', cache_dir: '${output_root}/${oc.env:DB_PASS}'}\n"
    )
    game = [each for each in GAME if not each.startswith("output_root")]
    found, codes = [], []
    for more in ((), ("seed=1,2", "--multirun")):
        with server(lambda handler: completion("hello")) as (url, seen):
            own = (f"--config-dir={folder / 'conf'}", *game, "llm=openai_compatible", f"llm.base_url={url}")
            ended = command(folder, "llmrl.cli.train", *own, "+experiment=nice", *more, DB_PASS=WORD)
        found += leaks(folder, ended.text)
        codes += [ended.code, bool(seen)]
    return not found and codes == [0, True, 0, True], f"{codes}, leaks {found}"


@attack("a model that says another variable's value, in JSON's and addresses' spelling", "redacted everywhere")
def _(folder: Path) -> tuple[bool, str]:
    hard = 'correct.horse."battery"/staple'
    spelled = [hard, json.dumps(hard), "http://h/?q=correct.horse.%22battery%22%2Fstaple"]
    with server(lambda handler: completion(" ".join(spelled))) as (url, _):
        ended = train(folder, *SERVER, f"llm.base_url={url}", "llm.failures=fall_back", THEIR_PASSWORD=hard)
    inside = [path.name for path in folder.rglob("*") if path.is_file() and b"correct.horse" in path.read_bytes()]
    return not inside and "correct.horse" not in ended.text, f"exit {ended.code}, leaks {inside}"


@attack("a sweep of a run whose server quotes the key", "no leak in logs of jobs, records, pickles, the closing table")
def _(folder: Path) -> tuple[bool, str]:
    with server(lambda handler: b"!" + handler.headers["Authorization"].encode()) as (url, seen):
        own = (*SERVER, f"llm.base_url={url}", "llm.api_key_env=OPENAI_API_KEY", "seed=0,1", "--multirun")
        ended = train(folder, *own, OPENAI_API_KEY=KEY)
    found, logs = leaks(folder, ended.text), list((folder / "outputs").rglob("*.log"))
    open_ = [p.name for p in (folder / "outputs").rglob("*") if stat.S_IMODE(p.stat().st_mode) & 0o077]
    return bool(seen) and not found and len(logs) >= 2 and not open_, f"{len(logs)} logs, leaks {found}, open {open_}"


@attack("llmrl-llm check and llmrl-sweep with a key in an argument", "refused or redacted")
def _(folder: Path) -> tuple[bool, str]:
    check = command(folder, "llmrl.cli.llm", "check", "llm=ollama", f"llm.base_url=http://u:{WORD}@127.0.0.1:1/v1")
    status = command(folder, "llmrl.cli.sweep", "status", f"nosuch/{KEY}", OPENAI_API_KEY=KEY)
    text = check.text + status.text
    return check.code == status.code == 1 and not leaks(folder, text), f"leaks {leaks(folder, text)}"


def _modes(root: Path) -> set[str]:
    return {oct(stat.S_IMODE(path.stat().st_mode)) for path in (root, *root.rglob("*"))}


@attack("umask 000: who may read a run, its cache and what is above it", "its owner alone")
def _(folder: Path) -> tuple[bool, str]:
    before = os.umask(0)
    try:
        with server(lambda handler: completion("hello")) as (url, _):
            ended = train(folder, *SERVER, f"llm.base_url={url}")
    finally:
        os.umask(before)
    modes = _modes(folder / "outputs")
    cached = any((folder / "outputs" / "llm_cache").rglob("*.json"))
    return ended.code == 0 and cached and modes == {"0o700", "0o600"}, f"exit {ended.code}, {sorted(modes)}"


@attack("umask 027 and private=false", "as the umask says, in processes of a sweep, too")
def _(folder: Path) -> tuple[bool, str]:
    before = os.umask(0o027)
    try:
        ended = train(folder, "llm=scripted", "private=false", "seed=0,1", "--multirun")
    finally:
        os.umask(before)
    modes = _modes(folder / "outputs")
    return ended.code == 0 and modes == {"0o750", "0o640"}, f"exit {ended.code}, {sorted(modes)}"


@attack("the Python interface: Run.open with a key in config or overrides", "refused, no folder")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.core.errors import ConfigError
    from llmrl.run.run import Run

    told = []
    for config, typed in (({"llm": [{"a": f"x {KEY}"}]}, []), ({KEY: 1}, []), ({}, [f"a.b={KEY}"])):
        try:
            Run.open(folder, "name", config, typed)
        except ConfigError as error:
            told.append(str(error))
    return len(told) == 3 and not leaks(folder, " ".join(told)) and not list(folder.iterdir()), f"{len(told)} refused"


@attack("an error of the loop that quotes a key", "not in traceback.txt, status.json, run.log")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.run.run import Run

    try:
        with Run.open(folder, "name", {}):
            raise ValueError(f"header was Authorization: Bearer {KEY}, url https://u:{WORD}@host/x?token={WORD}")
    except ValueError:
        pass
    text = next(folder.rglob("traceback.txt")).read_text()
    return "<redacted>" in text and not leaks(folder), f"leaks {leaks(folder)}"


@attack("the process's command line on record (provenance), with --api-key VALUE", "redacted")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.run.provenance import write_provenance

    before, sys.argv = sys.argv, ["x", "--api-key", WORD, f"--password={WORD}", KEY]
    try:
        write_provenance(folder, 1)
    finally:
        sys.argv = before
    return not leaks(folder), (folder / "provenance.json").read_text().count("<redacted>").__str__() + " redacted"


@attack("100 kB of signs that could make a search slow, 8 kinds", "linear: under 2 s each")
def _(folder: Path) -> tuple[bool, str]:
    import time

    slowest = 0.0
    for piece in ("://", "?a=", "&key", "bearer ", "sk-", "eyJ.", "api_key.", "-----BEGIN PRIVATE KEY-----"):
        start = time.process_time()
        redact_code((piece * 100_000)[:100_000])
        slowest = max(slowest, time.process_time() - start)
    return slowest < 2, f"slowest {slowest:.3f} s"


@attack("false alarms: hashes, names of models, runs, base64 pictures, UUIDs", "all pass unchanged")
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
    changed = [text for text in texts if redact(text) != text or redact_code(text) != text]
    return not changed, f"{len(texts)} texts, changed {changed[:3]}"


@attack("what a job of the sweep is given (its pickle) when a key is in the environment", "no key in it")
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
    return not leaks(folder), f"leaks {leaks(folder)}"


if __name__ == "__main__":
    main("Secrets reach no file, name or terminal, and runs are private")
