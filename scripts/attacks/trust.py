"""Handling of untrusted configs, run folders, texts and links.

    python scripts/attacks/trust.py [words of an attack's name]

Untrusted code must not be executed, secrets must not be sent to untrusted servers, control sequences must not reach the
terminal, and links must not be followed when files are removed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import io
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from attack import attack, main

from llmrl.core.option_files import load_option

CODE = """
from pathlib import Path
Path({marker!r}).touch()
class Part:
    learns = False
    def __init__(self, *args, **kwargs): Path({marker!r}).touch()
def boom(*args, **kwargs): Path({marker!r}).touch()
"""
ESCAPES = (
    "\x1b]52;c;cm0gLXJmIH4=\x07\x1b]8;;http://evil\x1b\\ok\x1b[1A\x1b[2K\r\x9b31mfinished, result 9.99\u202e\u2028[/]"
)
"""Control sequences: clipboard, link, cursor movement, color, text direction, line separator, and unopened markup."""
CommandResult = tuple[Any, str]
"""Return value or exit code of a command, and its output."""


@contextlib.contextmanager
def untrusted_modules(folder: Path) -> Iterator[Path]:
    """Make the modules `evil` and `llmrl_evil` importable, and yield a file that their code creates when executed."""
    marker, code = folder / "ran", folder / "code"
    code.mkdir(exist_ok=True)
    for name in ("evil", "llmrl_evil"):
        (code / f"{name}.py").write_text(CODE.format(marker=str(marker)))
    sys.path.insert(0, str(code))
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield marker
    finally:
        os.chdir(before)
        sys.path.remove(str(code))
        for name in ("evil", "llmrl_evil"):
            sys.modules.pop(name, None)


def capture_output(call: Callable[[], Any]) -> CommandResult:
    """Call a function, and return its return value, exit code or error, and its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code: Any = call()
        except SystemExit as stop:
            code = stop.code
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    return code, out.getvalue()


def get_tail(text: str) -> str:
    return " ".join(text.split())[-110:]


def check_rejection(folder: Path, call: Callable[[], Any], message: str) -> tuple[bool, str]:
    """Return whether a call is rejected with a message, without the execution of untrusted code."""
    with untrusted_modules(folder) as marker:
        code, out = capture_output(call)
        text = f"{out} {code}"
        has_run = marker.exists() or (folder / "pwned").exists()
        passed = message in " ".join(text.split()) and not has_run and code not in (0, None)
    return passed, "untrusted code was executed" if has_run else get_tail(text)


def make_command(app: str, *arguments: str) -> Callable[[], Any]:
    """Return a function that runs a console script in this process."""

    def call() -> Any:
        from hydra.core.global_hydra import GlobalHydra

        argv, variables = sys.argv, dict(os.environ)
        GlobalHydra.instance().clear()
        try:
            sys.argv = [app, *arguments]
            if app == "llmrl-train":
                from llmrl.cli.train import main as run
            elif app == "llmrl-evaluate":
                from llmrl.cli.evaluate import main as run
            elif app == "llmrl-sweep":
                from llmrl.cli.sweep import main as run
            elif app == "llmrl-finetune":
                from llmrl.cli.finetune import main as run
            elif app == "llmrl-report":
                from llmrl.cli.sweep_report import main as run
            else:
                from llmrl.cli.llm import main as run
            return run()
        finally:
            sys.argv = argv
            os.environ.clear()
            os.environ.update(variables)

    return call


RANDOM_PLAY = ("env=escape_room", "agent=random", "env.n_envs=2", "play.episodes=2")


def make_dry_run(*overrides: str) -> Callable[[], Any]:
    return make_command("llmrl-train", *overrides[:2], *RANDOM_PLAY, "dry_run=true", *overrides[2:])


@functools.cache
def make_finished_run() -> Path:
    """Return the folder of a finished run, which is computed once."""
    root = Path(tempfile.mkdtemp(prefix="llmrl_real_run_"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    code, out = capture_output(make_command("llmrl-train", *RANDOM_PLAY, f"output_root={root}"))
    assert code in (None, 0), out
    return next(path.parent for path in root.rglob("config.yaml"))


def make_untrusted_run(folder: Path, changes: Mapping[str, Any], state: str = "finished") -> Path:
    """Copy the finished run with changes of its config and its state, and return the folder."""
    import yaml

    run = folder / "runs" / "theirs" / "run-12345678" / "s0"
    shutil.copytree(make_finished_run(), run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, **changes}))
    (run / "status.json").write_text((run / "status.json").read_text().replace('"finished"', f'"{state}"'))
    return run


def write_option_file(folder: Path, content: str, file: str = "experiment/nice.yaml") -> tuple[str, ...]:
    """Write an option file, and return the command-line arguments for its folder."""
    path = folder / "conf" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return ("--config-dir", str(folder / "conf"))


def make_build(node: Any, group: str = "env") -> Callable[[], Any]:
    """Return a function that builds a config node."""

    def call() -> Any:
        from llmrl.config.builder import Builder
        from llmrl.core.seeding import Seeds

        return Builder({"seeds": Seeds(0)}).build(node, group)

    return call


OUTSIDE = "outside the trusted modules"
GAME = {**load_option("env", "gymnasium"), "id": "CartPole-v1", "n_envs": 1}

# --- names in configs ------------------------------------------------------------------------------------------------

REJECTED_TARGETS = {
    "torch as an attribute of a network module": (
        "llmrl.networks.actor_critic.torch.load",
        "outside the trusted modules",
    ),
    "pickle as an attribute of a loop module": ("llmrl.loops.baseline.pickle.loads", "not a class or function"),
    "Path, imported by the module of a part": ("llmrl.llms.replay.Path", "defined in pathlib"),
    "a helper that runs subprocesses": ("llmrl.sweeps.backends.slurm_submission.run_slurm_command", OUTSIDE),
    "the function of llmrl-sweep that removes files": ("llmrl.sweeps.run_control.remove_path", OUTSIDE),
    "a module with the prefix llmrl": ("llmrl_evil.Part", OUTSIDE),
    "a Cyrillic letter in the name": ("llmrl.\u0430gents.ppo_agent.PPOAgent", OUTSIDE),
    "a name with a line break": ("evil.Part\n", "not the dotted name"),
    "the globals of a function": ("llmrl.teachers.teacher_factory.llm_teacher.__globals__", "not the dotted name"),
    "instantiate of Hydra": ("hydra.utils.instantiate", OUTSIDE),
    "a function in a package of parts": ("llmrl.llms.local.loading.load_model", "not part of llmrl"),
    "the call log, which appends to any file": ("llmrl.llms.call_log.CallLog", OUTSIDE),
    "a private class in the module of a part": (
        "llmrl.agents.sb3_agent._TrainingFinished",
        "sb3_agent._TrainingFinished",
    ),
}
for _name, (_target, _message) in REJECTED_TARGETS.items():
    attack(_name, "rejected, nothing imported")(
        lambda folder, target=_target, message=_message: check_rejection(  # type: ignore[misc]
            folder, make_build({"_target_": target}), message
        )
    )


@attack("an option that sets its own trusted modules", "rejected, nothing imported")
def _(folder: Path) -> tuple[bool, str]:
    node = {**GAME, "id": "evil:X-v0", "trust": {"modules": ["evil"]}}
    return check_rejection(folder, make_build(node), "has no option 'trust'")


@attack("an option that sets its own trusted modules, in the validation before a sweep", "rejected")
def _(folder: Path) -> tuple[bool, str]:
    def call() -> None:
        from llmrl.config.builder import Builder

        Builder().validate({**GAME, "trust": {"modules": ["evil"]}}, "env")

    return check_rejection(folder, call, "has no option 'trust'")


@attack("env.id with a space before the module", "rejected")
def _(folder: Path) -> tuple[bool, str]:
    return check_rejection(folder, make_build({**GAME, "id": " evil:X-v0"}), OUTSIDE)


@attack("env.text is a Python file", "rejected")
def _(folder: Path) -> tuple[bool, str]:
    return check_rejection(folder, make_build({**GAME, "text": str(folder / "code" / "evil.py")}), "env.text")


@attack("env.text is YAML that creates Python objects", "rejected")
def _(folder: Path) -> tuple[bool, str]:
    (folder / "t.yaml").write_text("goal: !!python/object/apply:os.system ['touch pwned']\n")
    return check_rejection(folder, make_build({**GAME, "text": str(folder / "t.yaml")}), "YAML")


@attack("a prompt template that accesses Python objects", "rejected by the sandbox")
def _(folder: Path) -> tuple[bool, str]:
    prompt_folder = folder / "prompts" / "p"
    prompt_folder.mkdir(parents=True)
    (prompt_folder / "x.j2").write_text(
        "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os }}"
    )

    def call() -> None:
        from llmrl.llms.prompts import PromptFamily

        PromptFamily("p", prompt_folder, folder / "prompts").render("x")

    return check_rejection(folder, call, "prompt p/x")


# --- run folders -----------------------------------------------------------------------------------------------------


def make_evaluation(run: Path, *arguments: str) -> Callable[[], Any]:
    return make_command("llmrl-evaluate", str(run), "--episodes", "2", *arguments)


@attack("a run folder with an untrusted agent", "requires --trust evil")
def _(folder: Path) -> tuple[bool, str]:
    run = make_untrusted_run(folder, {"agent": {"_target_": "evil.Part"}, "trusted_modules": ["evil"]})
    return check_rejection(folder, make_evaluation(run), "--trust evil")


@attack("an untrusted module in addition to trusted ones", "requires --trust llmrl_evil")
def _(folder: Path) -> tuple[bool, str]:
    run = make_untrusted_run(folder, {"agent": {"_target_": "llmrl_evil.Part"}})
    return check_rejection(folder, make_evaluation(run, "--trust", "llmrl", "--trust", "mine"), "--trust llmrl_evil")


@attack("a config.yaml that creates Python objects", "rejected")
def _(folder: Path) -> tuple[bool, str]:
    run = make_untrusted_run(folder, {})
    with (run / "config.yaml").open("a") as file:
        file.write("x: !!python/object/apply:os.system ['touch pwned']\n")
    return check_rejection(folder, make_evaluation(run), "cannot be read")


@attack("a saved config with interpolations of secrets", "not resolved")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.run.artifacts import read_config

    os.environ["LLMRL_ATTACK"] = "secret"
    found = read_config(make_untrusted_run(folder, {"name": "${oc.env:LLMRL_ATTACK}"}), [])
    return found["name"] == "${oc.env:LLMRL_ATTACK}", str(found["name"])


class _PickledCommand:
    """Object whose unpickling creates a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {shlex.quote(str(self.file))}",)


@attack("a checkpoint with a malicious pickle and a valid digest", "not unpickled")
def _(folder: Path) -> tuple[bool, str]:
    import torch

    from llmrl.run.checkpoints import MAGIC

    run = make_untrusted_run(folder, {})
    buffer = io.BytesIO()
    torch.save({"state": _PickledCommand(folder / "pwned")}, buffer)
    data = buffer.getvalue()
    for file in (run / "checkpoints").iterdir():
        if file.is_file():
            file.write_bytes(data + MAGIC + hashlib.sha256(data).digest())
    return check_rejection(folder, make_evaluation(run), "checkpoint")


@attack("trajectories that contain pickles", "not unpickled")
def _(folder: Path) -> tuple[bool, str]:
    import numpy as np

    from llmrl.run.trajectories import read_trajectories

    path = folder / "0.npz"
    np.savez(path, observation=np.array([_PickledCommand(folder / "pwned")], dtype=object), allow_pickle=True)
    return check_rejection(folder, lambda: read_trajectories(path), "allow_pickle=False")


@attack("a cached reply that is a pickle", "ignored")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.llms.cache import Cache

    cache = Cache(folder)
    path = cache._get_path("00" * 32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(_PickledCommand(folder / "pwned")))
    code, out = capture_output(lambda: cache.get("00" * 32))
    return not (folder / "pwned").exists(), f"{code} {get_tail(out)}"


@attack("--env of an evaluation with an untrusted module", "rejected")
def _(folder: Path) -> tuple[bool, str]:
    run = make_untrusted_run(folder, {"env": GAME})
    return check_rejection(folder, make_evaluation(run, "--env", "id=evil:X-v0"), OUTSIDE)


@attack("llmrl-sweep retry of a run folder with shell commands", "requires --trust shell")
def _(folder: Path) -> tuple[bool, str]:
    import yaml

    hardware = yaml.safe_load((make_finished_run() / "config.yaml").read_text())["hardware"]
    slurm = {"_target_": "llmrl.sweeps.backends.slurm_submission.Slurm", "setup": ["touch pwned"]}
    make_untrusted_run(folder, {"hardware": {**hardware, "backend": slurm}}, "failed")
    return check_rejection(folder, make_command("llmrl-sweep", "retry", str(folder / "runs")), "--trust shell")


@attack("a line break in the name of an account", "rejected, no job script")
def _(folder: Path) -> tuple[bool, str]:
    call = make_dry_run("hardware=slurm_cpu", "hardware.backend.account='x\ntouch pwned #'")
    return check_rejection(folder, call, "")


# --- keys ------------------------------------------------------------------------------------------------------------

CLOUD = "AWS_SECRET_ACCESS_KEY"


def check_no_request(
    folder: Path, make_call: Callable[[str], Callable[[], Any]], message: str = f"{CLOUD}@http"
) -> tuple[bool, str]:
    """Return whether a call with the URL of an untrusted server is rejected before a request reaches the server."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(f"{self.path} {self.headers}")
            self.send_error(400)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = dict(os.environ)
    os.environ[CLOUD] = os.environ["OPENAI_API_KEY"] = "correct-horse-battery"
    try:
        code, out = capture_output(make_call(f"http://127.0.0.1:{server.server_port}/v1"))
    finally:
        os.environ.clear()
        os.environ.update(variables)
        server.shutdown()
        server.server_close()
    text = " ".join(f"{out} {code}".split())
    return not received and code not in (0, None) and message in text, f"{len(received)} received; {get_tail(text)}"


def make_served_model(url: str, variable: str = CLOUD) -> dict[str, Any]:
    target = "llmrl.llms.openai_compatible.OpenAICompatibleChat"
    return {"_target_": target, "base_url": url, "model": "m", "api_key_env": variable}


def make_preset_run(folder: Path, content: str, *overrides: str) -> Callable[[], Any]:
    """Return a function that runs `llmrl-train` with a preset of the given content."""
    config_arguments = write_option_file(folder, f"# @package _global_\n{content}\n")
    game = (
        "env=escape_room",
        "principal=llm",
        "design.steps=1",
        "design.references=0",
        f"output_root={folder / 'out'}",
    )
    return make_command("llmrl-train", *config_arguments, *game, "+experiment=nice", *overrides)


@attack("URLs that resemble those of a provider", "rejected")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.config.permissions import check_permissions
    from llmrl.core.errors import ConfigError

    hosts = (
        "api.openai.com\\@evil.org",
        "api.openai.com@evil.org",
        "api.openai.com.evil.org",
        "api.openai.com\t.evil.org",
    )
    hosts += (
        "evil.org#api.openai.com",
        "evil.org?api.openai.com",
        "api.openai.com:444",
        "[::1]",
        "\u0430pi.openai.com",
    )
    accepted = []
    for host in hosts:
        node = make_served_model(f"https://{host}/v1", "OPENAI_API_KEY")
        with contextlib.suppress(ConfigError):
            check_permissions({"llm": node, "trusted_modules": []})
            accepted.append(host)
    return not accepted, f"{len(hosts)} URLs, accepted {accepted}"


@attack("an override with HTTP to another machine", "requires llm.plain_http")
def _(folder: Path) -> tuple[bool, str]:
    overrides = ("llm=openai_compatible", "llm.model=m", "llm.base_url=http://192.0.2.1/v1", f"llm.api_key_env={CLOUD}")
    return check_no_request(folder, lambda url: make_preset_run(folder, "{}", *overrides), "llm.plain_http=true")


def make_model_run(folder: Path, url: str) -> Path:
    """Create a run folder whose player uses a model on an untrusted server."""
    from llmrl.core.option_files import load_option
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.resources import CALL_POLICY_KEYS
    from llmrl.run.config_hash import config_hash

    overrides = ["env=blackjack", "agent=llm_player", "env.n_envs=1", "play.episodes=1"]
    config = Experiment.compose(*overrides, "llm=scripted").config
    policies = {key: value for key, value in config["llm"].items() if key in CALL_POLICY_KEYS}
    config["llm"] = {**load_option("llm", "openai_compatible"), **policies, **make_served_model(url)}
    run = make_untrusted_run(folder, {key: value for key, value in config.items() if key != "output_root"}, "failed")
    run = run.parent.rename(run.parents[1] / f"run-{config_hash(config)}") / run.name
    status = json.loads((run / "status.json").read_text())
    overrides += ["llm=openai_compatible", "llm.model=m", f"llm.base_url={url}", f"llm.api_key_env={CLOUD}"]
    (run / "status.json").write_text(json.dumps({**status, "overrides": overrides}))
    return run


FOLDER_COMMANDS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "llmrl-evaluate": lambda run: ("llmrl-evaluate", str(run), "--episodes", "2"),
    "llmrl-sweep retry": lambda run: ("llmrl-sweep", "retry", str(run.parents[2])),
}
for _name, _get_command in FOLDER_COMMANDS.items():

    @attack(f"{_name} of a run folder that sends a cloud secret to an untrusted server", "rejected, no requests")
    def _(folder: Path, get_command: Callable[[Path], tuple[str, ...]] = _get_command) -> tuple[bool, str]:
        def call(url: str) -> Callable[[], Any]:
            run = make_model_run(folder, url)
            if get_command(run)[1] == "retry":
                shutil.rmtree(run / "checkpoints")  # they belong to another run
            return make_command(*get_command(run))

        return check_no_request(folder, call)


# --- terminals -------------------------------------------------------------------------------------------------------


def find_control_characters(text: str) -> list[str]:
    controls = [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    return controls + [
        c for c in text if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "LRI", "RLI", "FSI")
    ]


def check_output(call: Callable[[], Any], expected: str) -> tuple[bool, str]:
    """Return whether the output of a call contains a text and no control characters."""
    code, out = capture_output(call)
    text = f"{out}{code if isinstance(code, str) else ''}"
    controls = find_control_characters(text)
    return not controls and expected in text, f"{len(controls)} control characters; {get_tail(text)[-70:]}"


@contextlib.contextmanager
def run_server(status: int, body: bytes) -> Iterator[str]:
    """Run a server with the same response to all requests, and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def make_model_check(url: str) -> Callable[[], Any]:
    overrides = ("llm=openai_compatible", f"llm.base_url={url}", "llm.model=m", "llm.retry.retries=0")
    return make_command("llmrl-llm", "check", *overrides)


for _status in (401, 404, 500):

    @attack(f"control sequences in the body of HTTP {_status}", "escaped")
    def _(folder: Path, status: int = _status) -> tuple[bool, str]:
        with run_server(status, ESCAPES.encode()) as url:
            # For a rejected key, only the hint is printed.
            return check_output(make_model_check(url), "llm.api_key_env" if status == 401 else "result 9.99")


@attack("control sequences in a reply, its finish reason and the list of models", "escaped")
def _(folder: Path) -> tuple[bool, str]:
    choice = {"message": {"content": ESCAPES}, "finish_reason": ESCAPES}
    with run_server(200, json.dumps({"choices": [choice], "data": [{"id": ESCAPES}]}).encode()) as url:
        return check_output(make_model_check(url), "result 9.99")


def make_run_with_status(folder: Path, **fields: Any) -> Path:
    run = make_untrusted_run(folder, {}, "failed")
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, **fields}))
    return run


@attack("control sequences in a stored error", "escaped in the table of a sweep")
def _(folder: Path) -> tuple[bool, str]:
    make_run_with_status(folder, error=ESCAPES, host=ESCAPES, llm=ESCAPES, env=ESCAPES)
    return check_output(make_command("llmrl-sweep", "status", str(folder / "runs")), "9.99")


@attack("markup in stored overrides", "printed literally")
def _(folder: Path) -> tuple[bool, str]:
    make_run_with_status(folder, overrides=["agent=[/red][link=http://evil]x", f"env={ESCAPES}"])
    return check_output(make_command("llmrl-sweep", "status", str(folder / "runs")), "[link=http://evil]")


@attack("a report of runs with control sequences", "escaped")
def _(folder: Path) -> tuple[bool, str]:
    run = make_run_with_status(
        folder, overrides=[f"agent={ESCAPES}"], env=ESCAPES, llm=ESCAPES, error=ESCAPES, state="finished"
    )
    call = make_command("llmrl-report", str(run.parents[2]), "--no-figures", "--out", str(folder / "report"))
    code, out = capture_output(call)
    return not find_control_characters(out), f"{code}; {get_tail(out)[-80:]}"


@attack("control sequences in the log of a run", "escaped")
def _(folder: Path) -> tuple[bool, str]:
    run = make_untrusted_run(folder, {})
    (run / "run.log").write_bytes(f"lost\r{ESCAPES}\n".encode())
    (run / "traceback.txt").write_text(ESCAPES)
    return check_output(make_command("llmrl-sweep", "logs", str(run)), "result 9.99")


@attack("control sequences in the name of a folder", "escaped by status and clean")
def _(folder: Path) -> tuple[bool, str]:
    run = make_untrusted_run(folder, {}, "failed")
    run.parents[1].rename(run.parents[2] / "\x1b[2J\x1b]0;x\x07fine\nremoved 0 items, 0.0 MB")
    status_check = check_output(make_command("llmrl-sweep", "status", str(folder / "runs")), "")
    clean_check = check_output(make_command("llmrl-sweep", "clean", str(folder / "runs"), "--unfinished"), "fine")
    return status_check[0] and clean_check[0], f"{status_check[1]} / {clean_check[1]}"


@attack("printed commands, executed in a shell", "only the command is executed")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.display.sweeps import print_sweep
    from llmrl.sweeps.backends.local import Local
    from llmrl.sweeps.backends.protocol import Hardware, Job, JobOutcome

    run_folder = folder / "it's $(touch pwned) `touch pwned`; touch pwned #" / "run" / "s0"
    run_folder.mkdir(parents=True)
    job = Job({"seed": 0, "name": "x"}, [], Hardware(Local(), "cpu", "highest", 1, 1, 1.0, 0, 1), 1, [])
    _, out = capture_output(lambda: print_sweep([JobOutcome(job, run_folder, "failed", error="x")]))
    lines = [line.removeprefix("Why: ") for line in out.splitlines() if line.startswith(("Why: llmrl", "llmrl-"))]
    stubs = 'llmrl-sweep() { echo "$@"; }; llmrl-report() { echo "$@"; }; '
    for line in lines:
        subprocess.run(["bash", "-c", stubs + line], cwd=folder, capture_output=True, timeout=20, check=True)
    return len(lines) == 3 and not (folder / "pwned").exists(), f"{len(lines)} commands executed: {lines[-1][-60:]}"


# --- links -----------------------------------------------------------------------------------------------------------


def run_clean(folder: Path, *kinds: str) -> CommandResult:
    return capture_output(
        make_command(
            "llmrl-sweep", "clean", str(folder), *(kinds or ("--unfinished", "--backups", "--launches")), "--yes"
        )
    )


def make_outside_folder(folder: Path) -> Path:
    """Create a folder outside of the output root, whose files must not be removed."""
    outside = folder / "outside"
    (outside / "s1" / "backup_1").mkdir(parents=True)
    (outside / "file").write_text("content")
    (outside / "s1" / "file").write_text("content")
    return outside


def is_intact(outside: Path) -> bool:
    paths = (outside / "file", outside / "s1" / "file", outside / "s1" / "backup_1")
    return all(path.exists() for path in paths)


@attack("the folder of launches is a link to another folder", "not followed")
def _(folder: Path) -> tuple[bool, str]:
    outside, run = make_outside_folder(folder), make_untrusted_run(folder, {})
    (run.parents[2] / ".sweeps").symlink_to(outside)
    code, out = run_clean(run.parents[2])
    return is_intact(outside) and code == 0, get_tail(out)


@attack("a group of runs is a chain of links", "not followed")
def _(folder: Path) -> tuple[bool, str]:
    outside, run = make_outside_folder(folder), make_untrusted_run(folder, {})
    (folder / "middle").symlink_to(outside)
    (run.parents[1] / "group").symlink_to(folder / "middle")
    code, out = run_clean(run.parents[2])
    return is_intact(outside) and code == 0, get_tail(out)


@attack("a backup is a relative link to a parent folder", "not followed")
def _(folder: Path) -> tuple[bool, str]:
    outside, run = make_outside_folder(folder), make_untrusted_run(folder, {})
    (run / "backup_1").symlink_to("../../../../outside")
    code, out = run_clean(run.parents[2])
    return is_intact(outside) and code == 0, get_tail(out)


@attack("a backup with links to other folders and to itself", "only the links are removed")
def _(folder: Path) -> tuple[bool, str]:
    outside, run = make_outside_folder(folder), make_untrusted_run(folder, {})
    (run / "backup_1" / "deep").mkdir(parents=True)
    (run / "backup_1" / "deep" / "x").symlink_to(outside)
    (run / "backup_1" / "deep" / "loop").symlink_to("..")
    os.mkfifo(run / "backup_1" / "pipe")
    code, out = run_clean(run.parents[2])
    return is_intact(outside) and not (run / "backup_1").exists() and code == 0, get_tail(out)


@attack("a folder that is repeatedly replaced by a link during removal", "the target of the link is unchanged")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.core.errors import RunFolderError
    from llmrl.sweeps.run_control import remove_path

    outside, root = make_outside_folder(folder), folder / "runs"
    group, away, stop = root / "group", root / "away", threading.Event()
    (group / "s1").mkdir(parents=True)
    (group / "stays").touch()
    link = root / "link"
    link.symlink_to(outside)

    def swap() -> None:
        while not stop.is_set():
            for source, target in ((group, away), (link, group), (group, link), (away, group)):
                with contextlib.suppress(OSError):
                    source.rename(target)

    thread = threading.Thread(target=swap)
    thread.start()
    n_attempts = n_rejected = 0
    try:
        while n_attempts < 2000 and is_intact(outside):
            n_attempts += 1
            try:
                with contextlib.suppress(OSError):
                    (group / "s1").mkdir()
                remove_path(root, group / "s1")
            except RunFolderError:
                n_rejected += 1
    finally:
        stop.set()
        thread.join()
    return is_intact(outside), f"{n_attempts} attempts, {n_rejected} rejected"


if __name__ == "__main__":
    main("Untrusted code, texts and links")
