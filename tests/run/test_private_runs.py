"""Secrets do not occur in files or output of runs, and only the owner can read the files of a run."""

import contextlib
import json
import logging
import os
import re
import stat
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml

import commands
from experiments import compose, find_run_folder, run
from fake_openai_server import FakeOpenAIServer
from llmrl.core.errors import ConfigError
from llmrl.core.privacy import create_files_privately, make_folder
from llmrl.core.secrets import REDACTED
from llmrl.core.terminal import GuardedStream
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CALL_LOG_NAME, CallLog
from llmrl.llms.client import ChatClient
from llmrl.run.config_hash import config_hash
from llmrl.run.files import LineFile, write_atomic, write_json
from llmrl.run.folder import format_run_label
from llmrl.run.log_file import LogFile
from llmrl.run.run import Run
from llmrl.run.tensorboard_file import EventFile, parse_hyperparameters
from models import EchoProvider, make_litellm_model, make_openai_model, make_request

SECRET = "correcthorsebattery"
GAME = (
    "env=escape_room",
    "env.n_envs=4",
    "principal=llm",
    "design.steps=1",
    "design.references=0",
    "design.adapt_rounds=0",
    "design.validate_episodes=4",
    "design.confirm_steps=0",
    "design.evaluations=0",
)


@pytest.fixture
def secret(monkeypatch):
    """Set an environment variable for an API key and return its value."""
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    return SECRET


def find_leaks(folder):
    """Return the files in a folder whose content or name contains the secret."""
    paths = [path for path in folder.rglob("*") if SECRET in path.name]
    return paths + [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def main(module, *arguments, cwd, **environment):
    """Run the main function of a command."""
    return commands.run(
        [sys.executable, "-c", f"from {module} import main; main()", *arguments],
        cwd=cwd,
        env={**os.environ, "HYDRA_FULL_ERROR": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


class TestSinks:
    def test_files(self, tmp_path, secret):
        write_atomic(tmp_path / "a.txt", f"x{secret}y")
        write_json(tmp_path / "b.json", {secret: [secret, 1, None]})
        assert json.loads((tmp_path / "b.json").read_text()) == {REDACTED: [REDACTED, 1, None]}
        lines = LineFile(tmp_path / "c.jsonl")
        lines.write([json.dumps({"a": secret}), "2"])
        lines.close()
        assert lines.position()["lines"] == 2 and (tmp_path / "c.jsonl").read_text() == f'{{"a": "{REDACTED}"}}\n2\n'
        assert find_leaks(tmp_path) == []

    def test_log_tracebacks(self, tmp_path, secret):
        log = LogFile(tmp_path)
        try:
            raise ValueError(f"no {secret} here")
        except ValueError:
            logging.getLogger("llmrl.test").exception("failed with %s", secret)
        finally:
            log.close()
        assert "ValueError" in (tmp_path / "run.log").read_text() and find_leaks(tmp_path) == []

    def test_call_log_cache(self, tmp_path, secret):
        client = ChatClient(EchoProvider(), Cache(tmp_path / "cache"), CallLog(tmp_path / CALL_LOG_NAME))
        [reply] = client.chat([make_request(f"say {secret}", purpose=secret, schema={"title": secret})])
        assert reply.text == f"say {REDACTED}", "what is written down is what was used"
        assert len(list((tmp_path / "cache").rglob("*.json"))) == 1 and find_leaks(tmp_path) == []

    def test_tensorboard(self, tmp_path, secret):
        events = EventFile(tmp_path, 0.0)
        events.write_hyperparameters(parse_hyperparameters([f"env.x={secret}"], 0))
        events.write_text(0, 0.0, "a", f"**{secret}**")
        events.close()
        assert find_leaks(tmp_path) == []

    def test_folder_names(self, secret):
        assert secret not in format_run_label([f"env.x={secret}"]) and "redacted" in format_run_label(
            [f"env.x={secret}"]
        )

    def test_terminal(self, capsys, secret):
        out = GuardedStream(sys.stdout, escapes_controls=False)
        print(f"a {secret} b", file=out)
        out.writelines([secret, "\n"])
        assert capsys.readouterr().out == f"a {REDACTED} b\n{REDACTED}\n" and out.encoding

    def test_opening_run_leaks_no_secret(self, tmp_path, secret):
        for config, overrides in (({"llm": {"x": secret}}, []), ({}, [f"llm.x={secret}"])):
            with pytest.raises(ConfigError, match=r"llm\.x holds") as error:
                Run.open(tmp_path, "name", config, overrides)
            assert secret not in str(error.value)
        assert list(tmp_path.iterdir()) == []

    def test_failure_message_hides_secret(self, tmp_path, secret):
        with pytest.raises(ValueError, match=secret), Run.open(tmp_path, "name", {}):
            raise ValueError(f"no {secret} here")
        assert "ValueError" in (find_run_folder(tmp_path) / "traceback.txt").read_text()
        assert find_leaks(tmp_path) == []


HOSTILE = (
    f"llm.base_url=http://127.0.0.1:1/v1?api_key={SECRET}",
    f"llm.base_url=http://u:{SECRET}@127.0.0.1:1/v1",
    f"llm.api_key_env={SECRET}",
    "llm.model=${oc.env:SOME_API_KEY}",
    "llm=${oc.env:SOME_API_KEY}",
    f"name={SECRET}",
    f"nosuch.field={SECRET}",
)


@pytest.mark.parametrize("override", HOSTILE)
def test_command_line_secret_is_masked(tmp_path, override):
    variables = {} if override == HOSTILE[2] else {"SOME_API_KEY": SECRET}
    done = main("llmrl.cli.train", *GAME, "llm=openai_compatible", override, cwd=tmp_path, **variables)
    assert done.returncode == 1 and override.partition("=")[0] in done.stderr
    assert SECRET not in done.stdout + done.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["llmrl.cli.finetune", "llmrl.cli.train"])
def test_secret_in_file_raises(tmp_path, module):
    """The file is not read, and the message names its path."""
    (tmp_path / "conf" / "llm").mkdir(parents=True)
    option = {"_target_": "llmrl.llms.scripted.ScriptedChat", "nested": [{"key": "${oc.env:SOME_API_KEY}"}]}
    (tmp_path / "conf" / "llm" / "mine.yaml").write_text(yaml.safe_dump(option))
    game = GAME if module.endswith("train") else ()
    config = f"--config-dir={tmp_path / 'conf'}"
    done = main(module, config, *game, "llm=mine", "output_root=out", cwd=tmp_path, SOME_API_KEY=SECRET)
    assert done.returncode == 1 and re.search(r"llm\.nested\[0\]\.key .*SOME_API_KEY", done.stderr)
    assert SECRET not in done.stdout + done.stderr and not (tmp_path / "out").exists()
    # Hydra prints what it composed, and what for.
    done = main(module, config, *game, "llm=mine", "--cfg=job", "--resolve", cwd=tmp_path, SOME_API_KEY=SECRET)
    assert REDACTED in done.stdout and SECRET not in done.stdout + done.stderr


def test_check_refuses_as_well(tmp_path):
    done = main("llmrl.cli.llm", "check", "llm=ollama", f"llm.base_url=http://u:{SECRET}@127.0.0.1:1/v1", cwd=tmp_path)
    assert done.returncode == 1 and re.search(r"llm\.base_url .*password", done.stderr)
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_openai_model(f"http://h/v1?key={SECRET}", "m"),
        lambda: make_openai_model(f"u:{SECRET}@h/v1", "m"),
        lambda: make_openai_model("http://h/v1", "m", api_key_env=SECRET),
        lambda: make_litellm_model("m", "OPENAI_API_KEY", api_base=f"https://u:{SECRET}@h"),
        lambda: make_litellm_model("m", "OPENAI_API_KEY", api_base=f"https://h/?sig={SECRET}"),
        lambda: make_litellm_model("m", f"sk-{SECRET}0123456789"),
    ],
)
def test_models_reject_secrets(make):
    with pytest.raises(ConfigError, match=r"^llm\.(base_url|api_base|api_key_env)\b") as error:
        make()
    assert SECRET not in str(error.value)


@contextlib.contextmanager
def recording_server():
    """Yield a chat server that records the paths and headers of its requests."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, dict(self.headers)))
            data = json.dumps({"choices": [{"message": {"content": "hello"}}], "usage": {}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_key_header(tmp_path, secret, caplog):
    caplog.set_level(logging.DEBUG)
    with recording_server() as (url, requests):
        provider = make_openai_model(url, "m", api_key_env="SOME_API_KEY")
        client = ChatClient(provider, Cache(tmp_path / "cache"), CallLog(tmp_path / CALL_LOG_NAME))
        client.chat([make_request("a question")])
        client.close()
        assert secret not in provider.label and secret not in str(provider.identity)
    [(path, headers)] = requests
    assert path == "/v1/chat/completions" and headers["Authorization"] == f"Bearer {secret}"
    assert find_leaks(tmp_path) == []


def get_permissions(folder):
    """Return the permissions of the folders and of the files in a folder."""
    paths = [folder, *folder.rglob("*")]
    return tuple(
        {stat.S_IMODE(path.stat().st_mode) for path in paths if path.is_dir() == kind} for kind in (True, False)
    )


@contextlib.contextmanager
def umask(mask):
    previous = os.umask(mask)
    try:
        yield
    finally:
        os.umask(previous)


@pytest.mark.parametrize("private", [True, False])
def test_run_file_permissions(tmp_path, private):
    """Checks the run folder, its parents up to the output root, and the cache of replies."""
    root = tmp_path / "deep" / "outputs"
    with FakeOpenAIServer() as server, umask(0o022):
        url = ("llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=fake-model")
        run(*GAME, *url, f"output_root={root}", f"private={str(private).lower()}")
        assert os.umask(0o022) == 0o022, "whoever calls keeps his own"
    assert find_run_folder(root).parent.parent == root / "escape_room"
    assert any((root / "llm_cache").rglob("*.json"))
    assert get_permissions(root) == (({0o700}, {0o600}) if private else ({0o755}, {0o644}))


def test_open_run_folder_is_closed(tmp_path):
    with umask(0o022):
        make_folder(tmp_path / "a" / "b", private=False)
        assert get_permissions(tmp_path / "a") == ({0o755}, set())
        make_folder(tmp_path / "a" / "b", private=True)
        make_folder(tmp_path / "a" / "c" / "d", private=True)
    assert [stat.S_IMODE((tmp_path / p).stat().st_mode) for p in ("a", "a/b", "a/c", "a/c/d")] == [
        *(0o755, 0o700),
        *(0o700, 0o700),
    ]


def test_privacy_is_not_hashed():
    assert config_hash(compose(*GAME)) == config_hash(compose(*GAME, "private=false"))


@pytest.mark.parametrize("private", [True, False])
def test_blocks_restore_state(private):
    with umask(0o027):
        with create_files_privately(private):
            assert os.umask(0o077) == (0o077 if private else 0o027)
            os.umask(0o077 if private else 0o027)
        assert os.umask(0o027) == 0o027


@pytest.mark.slow
def test_process_sweep(tmp_path):
    """Checks the folder of the launcher, the logs of its runs and the files of their processes."""
    arguments = ["--multirun", *GAME, "llm=scripted", "seed=0,1", "hardware.rows=1", "output_root=outputs"]
    with umask(0o022):
        done = main("llmrl.cli.train", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "outputs" / ".sweeps").rglob("*.log"))) == 2
    assert get_permissions(tmp_path / "outputs") == ({0o700}, {0o600})
