"""Strangers' configs, run folders, texts and links: code that is not trusted must not run, and nothing be faked.

Usage: python scripts/attacks/trust.py [words of the names of attacks]
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
"""Writes the clipboard, links, goes back a line and rewrites it, colors, turns round; closes markup never opened."""
Said = tuple[Any, str]


@contextlib.contextmanager
def stranger(folder: Path) -> Iterator[Path]:
    """Yield a file that exists once code of the importable modules `evil` and `llmrl_evil` has run."""
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


def said_by(call: Callable[[], Any]) -> Said:
    """Return a command's result or exit, and all its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code: Any = call()
        except SystemExit as stop:
            code = stop.code
        except Exception as error:
            code = f"{type(error).__name__}: {error}"
    return code, out.getvalue()


def last(text: str) -> str:
    return " ".join(text.split())[-110:]


def refused(folder: Path, call: Callable[[], Any], words: str) -> tuple[bool, str]:
    """Return whether a call is refused with such words and no untrusted code has run."""
    with stranger(folder) as marker:
        code, out = said_by(call)
        text = f"{out} {code}"
        ran = marker.exists() or (folder / "pwned").exists()
        held = words in " ".join(text.split()) and not ran and code not in (0, None)
    return held, "code ran" if ran else last(text)


def command(app: str, *words: str) -> Callable[[], Any]:
    """Return a function that runs a console script in this process."""

    def call() -> Any:
        from hydra.core.global_hydra import GlobalHydra

        before, env = sys.argv, dict(os.environ)
        GlobalHydra.instance().clear()
        try:
            sys.argv = [app, *words]
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
            sys.argv = before
            os.environ.clear()
            os.environ.update(env)

    return call


PLAIN = ("env=escape_room", "agent=random", "env.n_envs=2", "play.episodes=2")


def trained(*words: str) -> Callable[[], Any]:
    return command("llmrl-train", *words[:2], *PLAIN, "dry_run=true", *words[2:])


@functools.cache
def finished() -> Path:
    """Return the folder of a real run, computed once."""
    root = Path(tempfile.mkdtemp(prefix="llmrl_real_run_"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    code, out = said_by(command("llmrl-train", *PLAIN, f"output_root={root}"))
    assert code in (None, 0), out
    return next(path.parent for path in root.rglob("config.yaml"))


def theirs(folder: Path, changes: Mapping[str, Any], state: str = "finished") -> Path:
    """Create a stranger's copy of the finished run."""
    import yaml

    run = folder / "runs" / "theirs" / "run-12345678" / "s0"
    shutil.copytree(finished(), run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, **changes}))
    (run / "status.json").write_text((run / "status.json").read_text().replace('"finished"', f'"{state}"'))
    return run


def options(folder: Path, content: str, file: str = "experiment/nice.yaml") -> tuple[str, ...]:
    """Create a stranger's folder of options; return the arguments that use it."""
    path = folder / "conf" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return ("--config-dir", str(folder / "conf"))


def build(node: Any, where: str = "env") -> Callable[[], Any]:
    def call() -> Any:
        from llmrl.config.builder import Builder
        from llmrl.core.seeding import Seeds

        return Builder({"seeds": Seeds(0)}).build(node, where)

    return call


OUTSIDE = "outside the trusted modules"
GAME = {"_target_": "llmrl.envs.gym.vec_env.GymnasiumEnv", "id": "CartPole-v1", "n_envs": 1}

# --- what a config names ---------------------------------------------------------------------------------------------

NAMED = {
    "torch reached through the network that uses it": (
        "llmrl.networks.actor_critic.torch.load",
        "outside the trusted modules",
    ),
    "pickle through the loop that imports it": ("llmrl.loops.baseline.pickle.loads", "not a class or function"),
    "Path, imported by a part's module": ("llmrl.llms.replay.Path", "defined in pathlib"),
    "subprocess through a private helper": ("llmrl.sweeps.backends.slurm_submission.run_slurm_command", OUTSIDE),
    "the remover of llmrl-sweep": ("llmrl.sweeps.run_control.remove_path", OUTSIDE),
    "a module that only begins like ours": ("llmrl_evil.Part", OUTSIDE),
    "a Cyrillic letter in the name": ("llmrl.\u0430gents.ppo_agent.PPOAgent", OUTSIDE),
    "a name with a line break": ("evil.Part\n", "not the dotted name"),
    "the globals of a function": ("llmrl.teachers.teacher_factory.llm_teacher.__globals__", "not the dotted name"),
    "Hydra's own instantiate": ("hydra.utils.instantiate", OUTSIDE),
    "a function of a package of parts": ("llmrl.llms.local.loading.load_model", "not part of llmrl"),
    "the ledger, which appends to any file": ("llmrl.llms.call_log.CallLog", OUTSIDE),
    "a private class of a part's module": ("llmrl.agents.sb3_agent._TrainingFinished", "sb3_agent._TrainingFinished"),
}
for _name, (_target, _words) in NAMED.items():
    attack(_name, "refused, nothing imported")(
        lambda folder, target=_target, words=_words: refused(folder, build({"_target_": target}), words)  # type: ignore[misc]
    )


@attack("an option that hands the gate its own trust", "refused, nothing imported")
def _(folder: Path) -> tuple[bool, str]:
    node = {**GAME, "id": "evil:X-v0", "trust": {"modules": ["evil"]}}
    return refused(folder, build(node), "has no option 'trust'")


@attack("the same, in the check before a sweep", "refused")
def _(folder: Path) -> tuple[bool, str]:
    def call() -> None:
        from llmrl.config.builder import Builder

        Builder().validate({**GAME, "trust": {"modules": ["evil"]}}, "env")

    return refused(folder, call, "has no option 'trust'")


@attack("env.id with a space before the module", "refused")
def _(folder: Path) -> tuple[bool, str]:
    return refused(folder, build({**GAME, "id": " evil:X-v0"}), OUTSIDE)


@attack("env.text is a file of Python", "refused")
def _(folder: Path) -> tuple[bool, str]:
    return refused(folder, build({**GAME, "text": str(folder / "code" / "evil.py")}), "env.text")


@attack("env.text is YAML that makes Python objects", "refused")
def _(folder: Path) -> tuple[bool, str]:
    (folder / "t.yaml").write_text("goal: !!python/object/apply:os.system ['touch pwned']\n")
    return refused(folder, build({**GAME, "text": str(folder / "t.yaml")}), "YAML")


@attack("a prompt of a stranger's folder reaches for Python", "refused by the sandbox")
def _(folder: Path) -> tuple[bool, str]:
    own = folder / "prompts" / "p"
    own.mkdir(parents=True)
    (own / "x.j2").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}{{ cycler.__init__.__globals__.os }}")

    def call() -> None:
        from llmrl.llms.prompts import PromptFamily

        PromptFamily("p", own, folder / "prompts").render("x")

    return refused(folder, call, "prompt p/x")


# --- run folders -----------------------------------------------------------------------------------------------------


def evaluated(run: Path, *words: str) -> Callable[[], Any]:
    return command("llmrl-evaluate", str(run), "--episodes", "2", *words)


@attack("a run folder whose agent is a stranger's", "asks for --trust evil")
def _(folder: Path) -> tuple[bool, str]:
    run = theirs(folder, {"agent": {"_target_": "evil.Part"}, "trusted_modules": ["evil"]})
    return refused(folder, evaluated(run), "--trust evil")


@attack("trust in one stranger lets another in", "asks for --trust llmrl_evil")
def _(folder: Path) -> tuple[bool, str]:
    run = theirs(folder, {"agent": {"_target_": "llmrl_evil.Part"}})
    return refused(folder, evaluated(run, "--trust", "llmrl", "--trust", "mine"), "--trust llmrl_evil")


@attack("a config.yaml that makes Python objects", "refused")
def _(folder: Path) -> tuple[bool, str]:
    run = theirs(folder, {})
    with (run / "config.yaml").open("a") as file:
        file.write("x: !!python/object/apply:os.system ['touch pwned']\n")
    return refused(folder, evaluated(run), "cannot be read")


@attack("a saved config with interpolations of secrets", "they stay texts")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.run.artifacts import read_config

    os.environ["LLMRL_ATTACK"] = "secret"
    found = read_config(theirs(folder, {"name": "${oc.env:LLMRL_ATTACK}"}), [])
    return found["name"] == "${oc.env:LLMRL_ATTACK}", str(found["name"])


class _Bomb:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {shlex.quote(str(self.file))}",)


@attack("a checkpoint that is a pickle bomb, with a right digest", "not unpickled")
def _(folder: Path) -> tuple[bool, str]:
    import torch

    from llmrl.run.checkpoints import MAGIC

    run = theirs(folder, {})
    buffer = io.BytesIO()
    torch.save({"state": _Bomb(folder / "pwned")}, buffer)
    data = buffer.getvalue()
    for file in (run / "checkpoints").iterdir():
        if file.is_file():
            file.write_bytes(data + MAGIC + hashlib.sha256(data).digest())
    return refused(folder, evaluated(run), "checkpoint")


@attack("trajectories that hold pickles", "not unpickled")
def _(folder: Path) -> tuple[bool, str]:
    import numpy as np

    from llmrl.run.trajectories import read_trajectories

    path = folder / "0.npz"
    np.savez(path, observation=np.array([_Bomb(folder / "pwned")], dtype=object), allow_pickle=True)
    return refused(folder, lambda: read_trajectories(path), "allow_pickle=False")


@attack("a kept reply that is a pickle", "counts as none")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.llms.cache import Cache

    cache = Cache(folder)
    path = cache._path_of_key("00" * 32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(_Bomb(folder / "pwned")))
    code, out = said_by(lambda: cache.get("00" * 32))
    return not (folder / "pwned").exists(), f"{code} {last(out)}"


@attack("--env of an evaluation names a module", "refused")
def _(folder: Path) -> tuple[bool, str]:
    run = theirs(folder, {"env": GAME})
    return refused(folder, evaluated(run, "--env", "id=evil:X-v0"), OUTSIDE)


@attack("a folder that is retried brings shell lines", "asks for --trust shell")
def _(folder: Path) -> tuple[bool, str]:
    import yaml

    hardware = yaml.safe_load((finished() / "config.yaml").read_text())["hardware"]
    slurm = {"_target_": "llmrl.sweeps.backends.slurm_submission.Slurm", "setup": ["touch pwned"]}
    theirs(folder, {"hardware": {**hardware, "backend": slurm}}, "failed")
    return refused(folder, command("llmrl-sweep", "retry", str(folder / "runs")), "--trust shell")


@attack("a line break in the name of an account", "refused, no job script is made")
def _(folder: Path) -> tuple[bool, str]:
    call = trained("hardware=slurm_cpu", "hardware.backend.account='x\ntouch pwned #'")
    return refused(folder, call, "")


# --- keys ------------------------------------------------------------------------------------------------------------

CLOUD = "AWS_SECRET_ACCESS_KEY"
HOSTED = "_target_: llmrl.llms.litellm_chat.LiteLLMChat"


def sent(folder: Path, call: Callable[[str], Callable[[], Any]], words: str = f"{CLOUD}@http") -> tuple[bool, str]:
    """Return whether a call with the address of a stranger's server is refused before any request reaches it."""
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
    before = dict(os.environ)
    os.environ[CLOUD] = os.environ["OPENAI_API_KEY"] = "correct-horse-battery"
    try:
        code, out = said_by(call(f"http://127.0.0.1:{server.server_port}/v1"))
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.shutdown()
        server.server_close()
    text = " ".join(f"{out} {code}".split())
    return not received and code not in (0, None) and words in text, f"{len(received)} received; {last(text)}"


def serving_model(url: str, variable: str = CLOUD) -> dict[str, Any]:
    target = "llmrl.llms.openai_compatible.OpenAICompatibleChat"
    return {"_target_": target, "base_url": url, "model": "m", "api_key_env": variable}


def asked_by_preset(folder: Path, content: str, *typed: str) -> Callable[[], Any]:
    own = options(folder, f"# @package _global_\n{content}\n")
    game = (
        "env=escape_room",
        "principal=llm",
        "design.steps=1",
        "design.references=0",
        f"output_root={folder / 'out'}",
    )
    return command("llmrl-train", *own, *game, "+experiment=nice", *typed)


@attack("an address that reads as a provider's and leads elsewhere", "refused")
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
    taken = []
    for host in hosts:
        node = serving_model(f"https://{host}/v1", "OPENAI_API_KEY")
        with contextlib.suppress(ConfigError):
            check_permissions({"llm": node, "trusted_modules": []})
            taken.append(host)
    return not taken, f"{len(hosts)} addresses, taken {taken}"


@attack("plain HTTP to another machine, typed", "needs llm.plain_http")
def _(folder: Path) -> tuple[bool, str]:
    typed = ("llm=openai_compatible", "llm.model=m", "llm.base_url=http://192.0.2.1/v1", f"llm.api_key_env={CLOUD}")
    return sent(folder, lambda url: asked_by_preset(folder, "{}", *typed), "llm.plain_http=true")


def asking_run(folder: Path, url: str) -> Path:
    """Create a stranger's run whose player uses a model on their server."""
    from llmrl.core.option_files import load_option
    from llmrl.experiment.experiment import Experiment
    from llmrl.experiment.resources import CALL_POLICY_KEYS
    from llmrl.run.config_hash import config_hash

    words = ["env=blackjack", "agent=llm_player", "env.n_envs=1", "play.episodes=1"]
    config = Experiment.compose(*words, "llm=scripted").config
    policies = {key: value for key, value in config["llm"].items() if key in CALL_POLICY_KEYS}
    config["llm"] = {**load_option("llm", "openai_compatible"), **policies, **serving_model(url)}
    run = theirs(folder, {key: value for key, value in config.items() if key != "output_root"}, "failed")
    run = run.parent.rename(run.parents[1] / f"run-{config_hash(config)}") / run.name
    status = json.loads((run / "status.json").read_text())
    words += ["llm=openai_compatible", "llm.model=m", f"llm.base_url={url}", f"llm.api_key_env={CLOUD}"]
    (run / "status.json").write_text(json.dumps({**status, "overrides": words}))
    return run


FOLDERS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "llmrl-evaluate": lambda run: ("llmrl-evaluate", str(run), "--episodes", "2"),
    "llmrl-sweep retry": lambda run: ("llmrl-sweep", "retry", str(run.parents[2])),
}
for _name, _words in FOLDERS.items():

    @attack(f"{_name} of a run folder that sends a secret of the cloud to its own server", "refused, nothing is sent")
    def _(folder: Path, words: Callable[[Path], tuple[str, ...]] = _words) -> tuple[bool, str]:
        def call(url: str) -> Callable[[], Any]:
            run = asking_run(folder, url)
            if words(run)[1] == "retry":
                shutil.rmtree(run / "checkpoints")  # of another run, which could not go on
            return command(*words(run))

        return sent(folder, call)


# --- terminals -------------------------------------------------------------------------------------------------------


def obeyed(text: str) -> list[str]:
    bad = [c for c in text if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    return bad + [c for c in text if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "LRI", "RLI", "FSI")]


def harmless(call: Callable[[], Any], words: str) -> tuple[bool, str]:
    code, out = said_by(call)
    text = f"{out}{code if isinstance(code, str) else ''}"
    return not obeyed(text) and words in text, f"{len(obeyed(text))} obeyed; {last(text)[-70:]}"


@contextlib.contextmanager
def serving(status: int, body: bytes) -> Iterator[str]:
    """Yield the address of a server that gives one answer to all requests."""

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


def asked(url: str) -> Callable[[], Any]:
    words = ("llm=openai_compatible", f"llm.base_url={url}", "llm.model=m", "llm.retry.retries=0")
    return command("llmrl-llm", "check", *words)


for _status in (401, 404, 500):

    @attack(f"the body of HTTP {_status} writes the clipboard and a result line", "spelled out")
    def _(folder: Path, status: int = _status) -> tuple[bool, str]:
        with serving(status, ESCAPES.encode()) as url:
            # Of a refused key the hint is shown alone.
            return harmless(asked(url), "llm.api_key_env" if status == 401 else "result 9.99")


@attack("a reply, its finish reason and the list of models write on the terminal", "spelled out")
def _(folder: Path) -> tuple[bool, str]:
    choice = {"message": {"content": ESCAPES}, "finish_reason": ESCAPES}
    with serving(200, json.dumps({"choices": [choice], "data": [{"id": ESCAPES}]}).encode()) as url:
        return harmless(asked(url), "result 9.99")


def stored(folder: Path, **fields: Any) -> Path:
    run = theirs(folder, {}, "failed")
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**status, **fields}))
    return run


@attack("a stored error rewrites the table of a sweep", "spelled out")
def _(folder: Path) -> tuple[bool, str]:
    stored(folder, error=ESCAPES, host=ESCAPES, llm=ESCAPES, env=ESCAPES)
    return harmless(command("llmrl-sweep", "status", str(folder / "runs")), "9.99")


@attack("stored overrides are markup", "shown as they are")
def _(folder: Path) -> tuple[bool, str]:
    stored(folder, overrides=["agent=[/red][link=http://evil]x", f"env={ESCAPES}"])
    return harmless(command("llmrl-sweep", "status", str(folder / "runs")), "[link=http://evil]")


@attack("a report of hostile runs", "spelled out")
def _(folder: Path) -> tuple[bool, str]:
    run = stored(folder, overrides=[f"agent={ESCAPES}"], env=ESCAPES, llm=ESCAPES, error=ESCAPES, state="finished")
    call = command("llmrl-report", str(run.parents[2]), "--no-figures", "--out", str(folder / "report"))
    code, out = said_by(call)
    return not obeyed(out), f"{code}; {last(out)[-80:]}"


@attack("the log of a run goes back a line", "spelled out")
def _(folder: Path) -> tuple[bool, str]:
    run = theirs(folder, {})
    (run / "run.log").write_bytes(f"lost\r{ESCAPES}\n".encode())
    (run / "traceback.txt").write_text(ESCAPES)
    return harmless(command("llmrl-sweep", "logs", str(run)), "result 9.99")


@attack("a folder whose name clears the screen", "spelled out by status and clean")
def _(folder: Path) -> tuple[bool, str]:
    run = theirs(folder, {}, "failed")
    run.parents[1].rename(run.parents[2] / "\x1b[2J\x1b]0;x\x07fine\nremoved 0 items, 0.0 MB")
    one = harmless(command("llmrl-sweep", "status", str(folder / "runs")), "")
    two = harmless(command("llmrl-sweep", "clean", str(folder / "runs"), "--unfinished"), "fine")
    return one[0] and two[0], f"{one[1]} / {two[1]}"


@attack("printed commands, pasted into a real shell", "nothing but the command runs")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.display.sweeps import print_sweep
    from llmrl.sweeps.backends.local import Local
    from llmrl.sweeps.backends.protocol import Hardware, Job, JobOutcome

    place = folder / "it's $(touch pwned) `touch pwned`; touch pwned #" / "run" / "s0"
    place.mkdir(parents=True)
    job = Job({"seed": 0, "name": "x"}, [], Hardware(Local(), "cpu", "highest", 1, 1, 1.0, 0, 1), 1, [])
    _, out = said_by(lambda: print_sweep([JobOutcome(job, place, "failed", error="x")]))
    lines = [line.removeprefix("Why: ") for line in out.splitlines() if line.startswith(("Why: llmrl", "llmrl-"))]
    stubs = 'llmrl-sweep() { echo "$@"; }; llmrl-report() { echo "$@"; }; '
    for line in lines:
        subprocess.run(["bash", "-c", stubs + line], cwd=folder, capture_output=True, timeout=20, check=True)
    return len(lines) == 3 and not (folder / "pwned").exists(), f"{len(lines)} lines pasted: {lines[-1][-60:]}"


# --- links -----------------------------------------------------------------------------------------------------------


def cleaned(folder: Path, *kinds: str) -> Said:
    return said_by(
        command("llmrl-sweep", "clean", str(folder), *(kinds or ("--unfinished", "--backups", "--launches")), "--yes")
    )


def precious(folder: Path) -> Path:
    own = folder / "precious"
    (own / "s1" / "backup_1").mkdir(parents=True)
    (own / "thesis").write_text("years")
    (own / "s1" / "thesis").write_text("years")
    return own


def kept(own: Path) -> bool:
    return (own / "thesis").exists() and (own / "s1" / "thesis").exists() and (own / "s1" / "backup_1").exists()


@attack("the folder of launches is a link to a home", "left alone")
def _(folder: Path) -> tuple[bool, str]:
    own, run = precious(folder), theirs(folder, {})
    (run.parents[2] / ".sweeps").symlink_to(own)
    code, out = cleaned(run.parents[2])
    return kept(own) and code == 0, last(out)


@attack("a group of runs is a chain of links", "left alone")
def _(folder: Path) -> tuple[bool, str]:
    own, run = precious(folder), theirs(folder, {})
    (folder / "middle").symlink_to(own)
    (run.parents[1] / "group").symlink_to(folder / "middle")
    code, out = cleaned(run.parents[2])
    return kept(own) and code == 0, last(out)


@attack("a backup is a relative link upwards", "left alone")
def _(folder: Path) -> tuple[bool, str]:
    own, run = precious(folder), theirs(folder, {})
    (run / "backup_1").symlink_to("../../../../precious")
    code, out = cleaned(run.parents[2])
    return kept(own) and code == 0, last(out)


@attack("a backup holds links to folders, and to itself", "the links go, nothing else")
def _(folder: Path) -> tuple[bool, str]:
    own, run = precious(folder), theirs(folder, {})
    (run / "backup_1" / "deep").mkdir(parents=True)
    (run / "backup_1" / "deep" / "x").symlink_to(own)
    (run / "backup_1" / "deep" / "loop").symlink_to("..")
    os.mkfifo(run / "backup_1" / "pipe")
    code, out = cleaned(run.parents[2])
    return kept(own) and not (run / "backup_1").exists() and code == 0, last(out)


@attack("somebody swaps the folder for a link all the time", "nothing behind it is touched")
def _(folder: Path) -> tuple[bool, str]:
    from llmrl.core.errors import RunFolderError
    from llmrl.sweeps.run_control import remove_path

    own, root = precious(folder), folder / "runs"
    group, away, stop = root / "group", root / "away", threading.Event()
    (group / "s1").mkdir(parents=True)
    (group / "stays").touch()
    link = root / "link"
    link.symlink_to(own)

    def swap() -> None:
        while not stop.is_set():
            for a, b in ((group, away), (link, group), (group, link), (away, group)):
                with contextlib.suppress(OSError):
                    a.rename(b)

    thread = threading.Thread(target=swap)
    thread.start()
    tried = lost = 0
    try:
        while tried < 2000 and kept(own):
            tried += 1
            try:
                with contextlib.suppress(OSError):
                    (group / "s1").mkdir()
                remove_path(root, group / "s1")
            except RunFolderError:
                lost += 1
    finally:
        stop.set()
        thread.join()
    return kept(own), f"{tried} tries, {lost} met a link or nothing"


if __name__ == "__main__":
    main("Trust: strangers' code, texts and links")
