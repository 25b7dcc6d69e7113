"""Destinations of API keys: the key's provider, and in saved configs hosts that the user has granted."""

from __future__ import annotations

import json
import shutil
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import find_run_folder, run
from fake_openai_server import FakeOpenAIServer
from llmrl.cli.sweep import main as sweep
from llmrl.config.permissions import PROVIDER_ORIGINS, check_permissions, find_destinations
from llmrl.core.addresses import check_transport_security, is_loopback, parse_origin
from llmrl.core.errors import ConfigError
from llmrl.core.secrets import REDACTED
from llmrl.experiment.experiment import Experiment

VARIABLE = "AWS_SECRET_ACCESS_KEY"
GAME = ("env=escape_room", "principal=llm", "design.steps=1", "design.references=0", "design.adapt_rounds=0")
SMALL = ("design.validate_episodes=1", "env.n_envs=2", "design.confirm_steps=0", "design.evaluations=0")
EVIL = ("llm=openai_compatible", "llm.base_url=https://evil.example.org/v1", f"llm.api_key_env={VARIABLE}")


@pytest.fixture(autouse=True)
def _user(monkeypatch):
    monkeypatch.setenv(VARIABLE, "correct-horse-battery")


def preset(folder, **llm):
    """Write a third party's folder of options with `experiment=nice`."""
    path = folder / "conf" / "experiment" / "nice.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        "# @package _global_\ndefaults: [{override /llm: openai_compatible}, _self_]\n"
        + json.dumps({"llm": llm})[1:-1].replace('"llm":', "llm:")
        + "\n"
    )
    return folder / "conf"


def compose(*overrides, config_dirs=()):
    return Experiment.compose(*GAME, *overrides, config_dirs=config_dirs)


def node(**fields):
    return {"llm": {"_target_": "llmrl.llms.openai_compatible.OpenAICompatibleChat", **fields}, "trusted_modules": []}


def litellm_node(**fields):
    return {"llm": {"_target_": "llmrl.llms.litellm_chat.LiteLLMChat", **fields}, "trusted_modules": []}


def test_jobs_inherit_permission(tmp_path):
    typed = compose("llm=openai_compatible", "llm.base_url=https://lab.example.org/v1", f"llm.api_key_env={VARIABLE}")
    folder = preset(tmp_path, base_url="https://lab.example.org/v1", api_key_env=VARIABLE)
    for experiment in (typed, compose("+experiment=nice", config_dirs=[folder])):
        assert Experiment(experiment.config).config["llm"] == experiment.config["llm"]
        with pytest.raises(ConfigError, match=f"--trust {VARIABLE}@https://lab.example.org"):
            Experiment({**experiment.config, "trusted_modules": []})


def test_package_options_need_no_approval():
    for name in ("gpt4o", "claude_haiku", "gemini_flash", "grok", "mistral_medium", "vllm", "ollama"):
        compose(f"llm={name}", *(["llm.model=m"] if name == "vllm" else []))


@pytest.mark.parametrize(
    ("config", "entry"),
    [
        (litellm_node(model="gpt-4o", api_key_env=VARIABLE), f"{VARIABLE}@https://api.openai.com"),
        (litellm_node(model="deepseek/chat", api_key_env="OPENAI_API_KEY"), "OPENAI_API_KEY@https://api.deepseek.com"),
        # litellm would read the provider's variable by itself.
        (litellm_node(model="gpt-4o", api_key_env=None, api_base="https://e.org"), "OPENAI_API_KEY@https://e.org"),
        (litellm_node(model="https://e.org/x", api_key_env=VARIABLE), f"{VARIABLE}@https://e.org/x"),
        (node(base_url="https://api.openai.com.e.org", api_key_env="OPENAI_API_KEY"), None),
        (node(base_url="http://api.openai.com/v1", api_key_env="OPENAI_API_KEY"), None),
        (node(base_url="http://127.0.0.1:8000/v1", api_key_env=VARIABLE), f"{VARIABLE}@http://127.0.0.1:8000"),
        (node(base_url="https://e.org/v1"), "https://e.org"),
        ({"loggers": {"mlflow": {"tracking_uri": "https://e.org"}}, "trusted_modules": []}, "https://e.org"),
    ],
)
def test_saved_config_has_restricted_hosts(config, entry):
    with pytest.raises(ConfigError) as error:
        check_permissions(config)
    [destination] = find_destinations(config)
    assert entry in (None, destination) and destination in str(error.value)
    check_permissions({**config, "trusted_modules": [destination]})


@given(st.sampled_from(sorted(PROVIDER_ORIGINS)), st.sampled_from(sorted(PROVIDER_ORIGINS)))
def test_key_belongs_to_single_provider(provider, other_provider):
    config = node(base_url=f"{PROVIDER_ORIGINS[provider]}/v1", api_key_env=f"{other_provider.upper()}_API_KEY")
    if provider == other_provider:
        check_permissions(config)
    else:
        with pytest.raises(ConfigError):
            check_permissions(config)


@pytest.fixture(scope="module")
def completed_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    run(*GAME, *SMALL, "llm=scripted", f"output_root={root}")
    return find_run_folder(root)


@pytest.fixture
def foreign_run(completed_run, tmp_path):
    """Write a third party's run folder that sends a key to their host."""
    from yaml import safe_dump, safe_load

    folder = tmp_path / "runs" / "theirs" / completed_run.parent.name / "s0"
    shutil.copytree(completed_run, folder)
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "failed", "overrides": [*GAME, *SMALL, *EVIL]}))
    config = safe_load((folder / "config.yaml").read_text())
    llm = {**config["llm"], **node(base_url="https://evil.example.org/v1", model="m", api_key_env=VARIABLE)["llm"]}
    (folder / "config.yaml").write_text(safe_dump({**config, "llm": llm}))
    return folder


def test_retry_rejects_key_for_different_host(foreign_run, capsys):
    with pytest.raises(SystemExit) as stop:
        sweep(["retry", str(foreign_run.parents[2])])
    assert stop.value.code == 1
    assert f"--trust {VARIABLE}@https://evil.example.org" in capsys.readouterr().err
    assert not (foreign_run.parents[2] / ".sweeps").exists()


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("HTTPS://API.example.org:443/v1", "https://api.example.org"),
        ("http://h.:80", "http://h"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000"),
    ],
)
def test_origins(address, origin):
    assert parse_origin(address, "llm.base_url") == origin


@pytest.mark.parametrize(
    "address",
    [
        "https://api.openai.com\\@evil.org/v1",
        "https://u@evil.org/v1",
        "https://h/v1?k=x",
        "https://h/v1;key=x",
        "https://h/v1#x",
        "https://h\t.org/",
        "https://h:99999/",
        "ftp://h/",
        "h/v1",
        "",
    ],
)
def test_invalid_addresses(address):
    with pytest.raises(ConfigError):
        parse_origin(address, "llm.base_url")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "[::1]", "a.localhost"])
def test_this_machine(host):
    assert is_loopback(f"http://{host}:8000")
    check_transport_security(f"http://{host}:8000/v1", False, "llm.base_url")


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost.evil.org", "127.0.0.1.evil.org", "gpu-node", "[fe80::1]"])
def test_remote_plain_http_is_optional(host):
    assert not is_loopback(f"http://{host}:8000")
    with pytest.raises(ConfigError, match=r"llm\.plain_http=true"):
        check_transport_security(f"http://{host}:8000/v1", False, "llm.base_url")
    check_transport_security(f"http://{host}:8000/v1", True, "llm.base_url")
    check_transport_security(f"https://{host}:8000/v1", False, "llm.base_url")


def test_rejects_plain_http_run(tmp_path):
    overrides = (
        "llm=openai_compatible",
        "llm.model=m",
        "llm.base_url=http://gpu-node:8000/v1",
        f"output_root={tmp_path}/o",
    )
    with pytest.raises(ConfigError, match=r"llm\.plain_http"):
        compose(*overrides).check()
    assert not (tmp_path / "o").exists()
    assert compose(*overrides, "llm.plain_http=true").hash == compose(*overrides).hash


@pytest.fixture
def _resolved(monkeypatch):
    monkeypatch.setenv("LLMRL_RESOLVED_VARIABLES", "")


@pytest.mark.usefixtures("_resolved")
def test_redacts_preset_environment_variables(tmp_path, monkeypatch):
    password = uuid.uuid4().hex
    monkeypatch.setenv("DB_PASS", password)
    path = tmp_path / "conf" / "experiment" / "nice.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"# @package _global_\nname: x-${{oc.env:DB_PASS}}\noutput_root: {tmp_path}/o/${{oc.env:DB_PASS}}\n"
        "llm: {model: '${oc.env:DB_PASS}', cache_dir: '${output_root}/${oc.env:DB_PASS}'}\n"
    )
    with FakeOpenAIServer() as server:
        words = (*SMALL, "llm=openai_compatible", f"llm.base_url={server.url}", "llm.max_invalid=null")
        compose(*words, "+experiment=nice", config_dirs=[tmp_path / "conf"]).run()
    assert {request["model"] for request in server.requests} == {password}
    output_files = [output_path for output_path in (tmp_path / "o").rglob("*") if output_path.is_file()]
    assert any(output_path.name == "config.yaml" for output_path in output_files)
    assert (
        REDACTED in next(output_path for output_path in output_files if output_path.name == "config.yaml").read_text()
    )
    for output_path in output_files:
        assert password not in str(output_path) and password.encode() not in output_path.read_bytes()


@pytest.mark.usefixtures("_resolved")
def test_rejects_short_environment_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("DB_PASS", "hunter2")
    monkeypatch.setenv("TASK", "3")
    path = tmp_path / "experiment" / "nice.yaml"
    path.parent.mkdir()
    path.write_text("# @package _global_\nname: ${oc.env:DB_PASS}\n")
    with pytest.raises(ConfigError, match="DB_PASS"):
        compose("llm=scripted", "+experiment=nice", config_dirs=[tmp_path])
    path.write_text("# @package _global_\nseed: ${oc.decode:${oc.env:TASK}}\n")
    assert compose("llm=scripted", "+experiment=nice", config_dirs=[tmp_path]).config["seed"] == 3
