"""Every command and program of the page on other tools runs, cut to seconds."""

import re
import shlex
import subprocess

import pytest

import llmrl
from openenv_server import REQUIREMENT, start_server
from other_environment import RAY, make_environment
from pages import ROOT, find_code_blocks, list_command_lines, run_command, split_sections
from tiny_models import make_tiny_causal

SECTIONS = split_sections((ROOT / "docs" / "with_other_tools.md").read_text())
SMALL = {
    "name=walker": ["learn.env_steps=32", "learn.rollout_steps=8", "learn.evaluate_episodes=1", "env.n_envs=4"],
    "env=openenv": ["play.episodes=2", "env.n_envs=2"],
}
"""What cuts a command to seconds, by a word that is in it."""


def shorten(line):
    """Return the words of a command that takes seconds."""
    words = shlex.split(line)
    return words + [option for word, options in SMALL.items() if word in words for option in options]


def test_page_code_is_complete():
    sections_with_code = ["OpenEnv", "TRL", "Agents", "Tables", "Ray"]  # Ray: tests/sweeps/test_ray_conformance.py
    assert [title for title, text in SECTIONS.items() if "```" in text] == sections_with_code


def test_versions_are_those_of_tests():
    """The versions in the first column are those of the environment of the tests, or of environments of their own."""
    page = (ROOT / "docs" / "with_other_tools.md").read_text()
    lines = [*(ROOT / "constraints.txt").read_text().splitlines(), REQUIREMENT, RAY]
    versions = dict(line.replace("_", "").lower().split("==") for line in lines if "==" in line)
    aliases = {"hydra": "hydra-core", "pytorch": "torch"}
    named = re.findall(r"\[(\w+)\]\(https:[^)]*\) ([\d.]+)", page)
    assert len(named) == 11
    for tool, version in named:
        assert versions[aliases.get(tool.lower(), tool.lower())].startswith(f"{version}."), tool


@pytest.mark.slow
def test_agents_and_tables(tmp_path, monkeypatch):
    for line in list_command_lines(SECTIONS["Agents"] + SECTIONS["Tables"]):
        done = run_command(shorten(line), tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "outputs" / "tables" / "runs.parquet").is_file()
    assert len(list(tmp_path.glob("outputs/walker/*/tables/metrics.csv"))) == 1
    [program], names = find_code_blocks(SECTIONS["Agents"], "python"), {}
    assert len(program.splitlines()) <= 40
    exec(program, names)
    monkeypatch.chdir(tmp_path)
    observation, _ = llmrl.make_env("simple_doorkey", api="gymnasium").reset(seed=1)
    agent = names["Agent"]("walker", "player_0")
    assert agent(observation).shape == (len(agent.network["actions"]),)


@pytest.mark.long
@pytest.mark.parametrize("page", ["worlds", "gymnasium"])
def test_environments_of_libraries(page, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = list_command_lines((ROOT / "docs" / f"{page}.md").read_text())
    for line in [line for line in lines if "llmrl-train" in line and "my_package" not in line]:
        done = run_command(f"{line} +debug=quick", tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


@pytest.mark.long
def test_openenv(tmp_path):
    [install, serve, validate, serve_blackjack, train] = list_command_lines(SECTIONS["OpenEnv"])
    [client] = find_code_blocks(SECTIONS["OpenEnv"], "python")
    assert install.startswith("python -m venv openenv && openenv/bin/pip install llmrl")
    make_environment(tmp_path / "openenv", REQUIREMENT)
    python = tmp_path / "openenv" / "bin" / "python"
    *arguments, _, port = shlex.split(serve)[1:]
    with start_server(tmp_path / "openenv", *arguments) as (_, address):
        server = f"http://127.0.0.1:{port}"
        subprocess.run(shlex.split(validate.replace(server, address)), cwd=tmp_path, check=True)
        subprocess.run([python, "-c", client.replace(server, address)], check=True)
    *arguments, _, port = shlex.split(serve_blackjack)[1:]
    with start_server(tmp_path / "openenv", *arguments) as (_, address):
        words = shorten(train.replace(f"http://127.0.0.1:{port}", address))
        subprocess.run([python, "-m", "llmrl.cli.train", *words[1:]], cwd=tmp_path, check=True)


@pytest.mark.long
def test_trl(tmp_path, monkeypatch):
    """The trainer is made for a tiny model; tests/api/test_trl_environment.py lets it train one."""
    from trl.chat_template_utils import qwen3_chat_template

    monkeypatch.chdir(tmp_path)
    model = make_tiny_causal(tmp_path / "model", chat_template=qwen3_chat_template)
    [program], names = find_code_blocks(SECTIONS["TRL"], "python"), {}
    program = program.replace("Qwen/Qwen3-0.6B", str(model))
    exec(program.replace("GRPOConfig(", "GRPOConfig(use_cpu=True, bf16=False, report_to=[], "), names)
    assert len(names["trainer"].train_dataset) == 64
