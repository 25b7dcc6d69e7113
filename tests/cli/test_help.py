"""`--help`, `--list`, `--version` and `python -m llmrl`: short, complete and correct."""

import os
import re
import sys

import pytest

import commands
from in_process import run_in_process as call_in
from llmrl import __version__
from llmrl.cli.finetune import main as finetune
from llmrl.cli.help import (
    EXAMPLES_BY_COMMAND,
    GROUP_DESCRIPTIONS,
    LISTED_GROUPS,
    format_help_page,
    format_option_list,
    list_studies_by_family,
)
from llmrl.cli.train import main as train
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import list_option_names


def run_in_process(main, *words, cwd):
    return call_in(main, *words, cwd=cwd, environment=dict(os.environ))


@pytest.mark.parametrize("primary", ["train", "finetune"])
def test_help_fits_screen(primary):
    page = format_help_page(f"llmrl-{primary}", primary, 100)
    assert len(page.splitlines()) < 80 and max(map(len, page.splitlines())) <= 110
    words = set(re.findall(r"[\w/]+", page))
    for group in ("env", "agent", "llm", "hardware"):
        assert words >= set(list_option_names(group))
    for family, studies in list_studies_by_family().items():
        assert words >= {f"{family}/", *studies}
    assert len(EXAMPLES_BY_COMMAND["train"]) == 5


@pytest.mark.parametrize("group", [*LISTED_GROUPS, "experiment/first"])
def test_list_describes_options(group):
    lines = format_option_list(group, 100).splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert all(re.fullmatch(r"[\w/]+  +\S.*", head) for head in heads), heads
    option_names = [head.split()[0] for head in heads]
    assert option_names == ([f"first/{name}" for name in list_option_names(group)] if "/" in group else option_names)
    if group in GROUP_DESCRIPTIONS:
        assert option_names == list_option_names(group)


def test_unknown_group_lists_available_groups(tmp_path):
    with pytest.raises(ConfigError, match=r"'enf'.*env, agent"):
        format_option_list("enf", 100)
    done = run_in_process(train, "llmrl-train", "--list", cwd=tmp_path)
    assert done.returncode == 1 and "--list" in done.stderr and ": env, " in done.stderr


@pytest.mark.parametrize("flag_first", [True, False])
def test_lists_options_of_config_dir(flag_first, tmp_path):
    for name, text in (
        ("env/fair.yaml", "# A fair game. Second sentence.\n"),
        ("experiment/own/first.yaml", "# A plan.\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    flag = ["--config-dir", str(tmp_path)]

    def run(*words):
        arguments = [*flag, *words] if flag_first else [*words, *flag]
        done = run_in_process(train, "llmrl-train", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.search(r"^fair +A fair game\.$", run("--list", "env"), re.MULTILINE)
    assert re.search(r"^own/first +A plan\.$", run("--list", "experiment"), re.MULTILINE)
    assert " fair," in run("--help")


@pytest.mark.parametrize("main", [train, finetune])
def test_commands_answer(main, tmp_path):
    name = "llmrl-train" if main is train else "llmrl-finetune"
    assert run_in_process(main, name, "--help", cwd=tmp_path).stdout.startswith(f"{name} ")
    assert run_in_process(main, name, "--version", cwd=tmp_path).stdout == f"llmrl {__version__}\n"
    assert "Clean Up: " in run_in_process(main, name, "--list", "env", cwd=tmp_path).stdout


def test_package_runs_as_module(tmp_path):
    def module(*arguments):
        return commands.run([sys.executable, "-m", "llmrl", *arguments], capture_output=True, text=True, cwd=tmp_path)

    assert "  train " in module().stdout and module("--version").stdout == f"llmrl {__version__}\n"
    assert module("train", "--list", "hardware").stdout.startswith("cpu ")
    assert module("trian").returncode == 2
