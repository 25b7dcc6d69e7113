"""The code of docs/api.md, executed as a notebook by a real kernel; and the public names of the package."""

import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

import llmrl

PAGE = Path(llmrl.__file__).parents[2] / "docs" / "api.md"


def cells() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """The page's code as a notebook that has been run."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells()])
    folder = tmp_path_factory.mktemp("notebook")
    NotebookClient(made, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    nbformat.validate(made)
    return made, folder


def shown(notebook, code: str, kind: str = "text/plain") -> list[str]:
    """What the cell with this code has shown."""
    (cell,) = [cell for cell in notebook[0].cells if code in cell.source]
    return [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]


@pytest.mark.long
@pytest.mark.slow
def test_the_page_runs_as_a_notebook(notebook):
    _, folder = notebook
    assert len(list(folder.glob("outputs/escape_room/*/s[0-9]*"))) == 4
    assert {path.name for path in (folder / "tables").iterdir()} >= {"runs.parquet", "metrics.parquet"}
    assert "'finished'" in shown(notebook, "llmrl.sweep(")[-1]
    assert "player_0" in shown(notebook, 'api="pettingzoo")  # a ParallelEnv')[-1]
    assert "cleanup: " in shown(notebook, "llmrl.plan(")[-1]


@pytest.mark.long
@pytest.mark.slow
def test_a_bar_shows_how_far_a_run_is(notebook):
    """One line that changes in place; no log lines beside it, and warnings once."""
    (cell,) = [cell for cell in notebook[0].cells if "llmrl.train(" in cell.source]
    bars = [output for output in cell.outputs if output.output_type == "display_data"]
    assert len(bars) == 1 and "<progress" in bars[0]["data"]["text/html"]
    assert re.search(r"\d+/\d+ steps", bars[0]["data"]["text/plain"])
    texts = "".join(output.get("text", "") for output in cell.outputs if output.output_type == "stream")
    assert texts.count("WARNING") == 1 and "INFO" not in texts


@pytest.mark.long
@pytest.mark.slow
def test_the_stop_button_leaves_a_run_that_goes_on(tmp_path):
    """A kernel is interrupted in the middle of a run, and is there for the next cell."""
    kernel, client = start_new_kernel(cwd=str(tmp_path))
    try:
        small = {"env.n_envs": 2, "design.steps": 4000, "design.adapt_rounds": 1, "design.validate_episodes": 2}
        options = small | {"design.references": 0, "design.confirm_steps": 0, "design.evaluations": 0}
        running = client.execute(f"import llmrl\nllmrl.train('env=escape_room', 'principal=ucb', **{options})")
        while not any(path.stat().st_size for path in tmp_path.rglob("metrics.jsonl")):
            time.sleep(0.05)
        kernel.interrupt_kernel()
        ended = reply_to(client, running)
        assert ended["ename"] == "KeyboardInterrupt" and "everything is saved" in ended["evalue"]
        assert reply_to(client, client.execute("1 + 1"))["status"] == "ok"
    finally:
        kernel.shutdown_kernel(now=True)
    assert llmrl.load(tmp_path / "outputs").runs.state.tolist() == ["stopped"]


def reply_to(client, message: str) -> dict:
    while True:
        reply = client.get_shell_msg(timeout=300)
        if reply["parent_header"].get("msg_id") == message:
            return reply["content"]


def test_every_function_is_on_the_page():
    text = PAGE.read_text()
    functions = [name for name in llmrl.__all__ if name[0].islower()]
    assert len(functions) == 7 and not [name for name in functions if f"llmrl.{name}(" not in text]


def test_public_names_are_known_and_found():
    assert set(llmrl.__all__) == set(dir(llmrl))
    for name in llmrl.__all__:
        assert getattr(llmrl, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        _ = llmrl.trane


def test_importing_the_package_loads_nothing_but_itself():
    code = "import sys; before = set(sys.modules); import llmrl; print(sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(Path(llmrl.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['__future__', 'llmrl']\n"


def test_a_type_checker_knows_the_signatures():
    """The names that editors see are those that are found at run time."""
    source = Path(llmrl.__file__).read_text()
    imported = re.findall(r"^    from (llmrl\.api\.\w+) import (.+)$", source, flags=re.MULTILINE)
    seen = {name.strip(): home for home, names in imported for name in names.split(",")}
    assert seen == {name: f"llmrl.api.{home}" for name, home in llmrl._HOMES.items()}
