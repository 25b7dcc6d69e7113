"""The tutorials of docs/learn: their commands compose, notebooks are those of their pages and run from end to end."""

from __future__ import annotations

import base64
import io
import re
import shlex
from importlib import import_module
from pathlib import Path

import nbformat
import notebooks
import pytest
from PIL import Image

from llmrl.core.errors import ConfigError
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import check_values
from pages import list_command_lines

PAGES = notebooks.find_pages()
LEARN = ["learn.env_steps=8", "learn.rollout_steps=4", "learn.evaluate_episodes=2", "play.episodes=2", "env.n_envs=2"]
SMALL = {
    "name=village": [
        *("env.n_envs=2", "env.horizon=6", "agent.init_from=null", "design.steps=2", "design.candidates=2"),
        *("design.adapt_rounds=1", "design.validate_episodes=1", "design.references=0", "design.rollout_steps=null"),
    ],
    "latest:village": ["--video-steps", "4", "--episodes", "2"],
    "name=asked": ["play.episodes=2", "env.n_envs=2"],
    "experiment=first/teacher": [*LEARN, "seed=0"],
    "name=walker": ["env.horizon=6"],
    "experiment=first/zero_shot": [
        *("treatment=random_play,rule_play", "env.n_envs=1", "env.horizon=6", "play.episodes=1", "seed=0"),
    ],
    "experiment=first/search": [
        *(
            "search.iterations=2",
            "search.episodes=1",
            "search.evaluate_episodes=2",
            "search.confirm_candidates=0",
            "seed=0",
        ),
    ],
}
"""What cuts a command to seconds, by a word that is in it; of each key what is typed last counts."""


def shorten(line: str) -> str:
    """Return a command that takes seconds."""
    for word, options in SMALL.items():
        if word in shlex.split(line):
            return shlex.join([*shlex.split(line), *options])
    return line


def test_tutorial_pages():
    assert [page.stem for page in PAGES] == ["govern_a_village", "play_and_search", "teach_a_student"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebook_matches_page(page):
    """After a change of a page: python scripts/notebooks.py."""
    assert page.with_suffix(".ipynb").read_text() == notebooks.render_notebook(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebook_contains_cell_outputs(page):
    """After a change of a command: python scripts/notebooks.py --execute <name>."""
    cells = [cell for cell in nbformat.read(page.with_suffix(".ipynb"), as_version=4).cells if cell.cell_type == "code"]
    missing = [cell.source for cell in cells if not cell.outputs and notebooks.is_executable(cell.source)]
    assert missing == [notebooks.PATHS]
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebook_size_and_paths(page):
    content = page.with_suffix(".ipynb").read_text()
    assert len(content) <= 150_000
    assert not re.search(r"(/home/|/root/|/tmp/|/Users/|XDG_RUNTIME_DIR)", content)


def test_stored_picture_is_compressed():
    file = io.BytesIO()
    Image.effect_noise((1200, 300), 40).convert("RGBA").save(file, "png")
    png = base64.b64encode(file.getvalue()).decode()
    small = notebooks.compress_png(png)
    assert len(small) < len(png)
    assert Image.open(io.BytesIO(base64.b64decode(small))).size == (notebooks.MAX_WIDTH, 245)
    assert notebooks.compress_png(small) == small


def test_outputs_for_unchanged_cells_are_copied():
    old, new = (notebooks.make_notebook(f"# A\n\n```python\n1 + 1\n```\n\n```python\n{code}\n```\n") for code in "xy")
    for number, cell in enumerate(cell for cell in old.cells if cell.cell_type == "code"):
        cell.outputs = [nbformat.v4.new_output("stream", text=str(number))]
    notebooks.copy_outputs(new, old)
    assert [len(cell.outputs) for cell in new.cells if cell.cell_type == "code"] == [1, 1, 0]


def test_stored_outputs_are_plain_text():
    pieces = [nbformat.v4.new_output("stream", text=text) for text in ("\x1b[1mone", " two\x1b[0m /a/b/c")]
    [output] = notebooks.join_streams(pieces)
    assert notebooks.shorten_output(output, Path("/a/b")).text == "one two c"


def test_notebook_contains_text_commands_and_code():
    notebook = notebooks.make_notebook(
        "# A\n\nSee:\n\n```bash\nllmrl-train\n```\n\n```python\n1 + 1\n```\n\n```text\nx\n```\n"
    )
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", "code", "code", "code", "markdown"]
    assert [cell.source for cell in notebook.cells[2:]] == ["%%bash\nllmrl-train", "1 + 1", "```text\nx\n```"]


@pytest.mark.parametrize("line", sorted({line for page in PAGES for line in list_command_lines(page.read_text())}))
def test_command_composes(line):
    command, *words = shlex.split(line)
    assert command in ("llmrl-train", "llmrl-evaluate", "llmrl-report", "llmrl-llm")
    if command == "llmrl-train":
        single_values = [w if "[" in w else w.split(",")[0] for w in words if w != "--multirun" and "latest:" not in w]
        check_values(Experiment.compose(*single_values).config)


def test_invalid_command_is_detected():
    with pytest.raises(ConfigError):
        test_command_composes("llmrl-train env=village")


def test_short_options_exist_in_tutorials():
    words = {word for page in PAGES for line in list_command_lines(page.read_text()) for word in shlex.split(line)}
    assert not set(SMALL) - words


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_notebook_runs(page, tmp_path):
    """In a kernel of its own, with commands that take seconds; those for a real model are only composed."""
    nbformat, nbclient = import_module("nbformat"), import_module("nbclient")
    notebook = nbformat.reads(page.with_suffix(".ipynb").read_text(), as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source.startswith("%%bash\n"):
            lines = cell.source.removeprefix("%%bash\n").replace("\\\n", " ").splitlines()
            shortened_lines = [shorten(line.split("  #")[0]) for line in lines if "llm=gpt" not in line]
            cell.source = "%%bash\nset -e\n" + "\n".join(shortened_lines)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, startup_timeout=300, resources=place).execute()
    assert not [o for cell in notebook.cells for o in cell.get("outputs", ()) if o.output_type == "error"]
    assert list((tmp_path / "outputs").glob("*/*/s0/summary.json"))
