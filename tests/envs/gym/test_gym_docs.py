"""The examples of docs/gymnasium.md run as written."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "gymnasium.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_code_block_runs(block, capsys):
    exec(compile(block, "docs/gymnasium.md", "exec"), {})
    assert capsys.readouterr().out


def test_lake_optimum_matches_page(capsys):
    exec(compile(BLOCKS[0], "docs/gymnasium.md", "exec"), {})
    assert capsys.readouterr().out.startswith("0.740")


def test_page_lists_batched_engines():
    from llmrl.core.option_files import load_options
    from llmrl.envs.gym.batched import BATCHED_GAMES

    assert all(name.removeprefix("llmrl/").removesuffix("-v0") in PAGE for name in BATCHED_GAMES)
    gym_options = [name for name, option in load_options("env").items() if "gym.vec_env" in option.get("_target_", "")]
    assert [name for name in gym_options if f"`{name}`" not in PAGE and name != "gymnasium"] == []
