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
    """Run the page's code as a notebook."""
    new_notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells()])
    folder = tmp_path_factory.mktemp("notebook")
    NotebookClient(new_notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    nbformat.validate(new_notebook)
    return new_notebook, folder


def show_output(notebook, code: str, kind: str = "text/plain") -> list[str]:
    """Return the output of the cell with this code."""
    (cell,) = [cell for cell in notebook[0].cells if code in cell.source]
    return [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]


@pytest.mark.long
@pytest.mark.slow
def test_page_runs_as_notebook(notebook):
    _, folder = notebook
    assert len(list(folder.glob("outputs/escape_room/*/s[0-9]*"))) == 4
    assert {path.name for path in (folder / "tables").iterdir()} >= {"runs.parquet", "metrics.parquet"}
    assert "'finished'" in show_output(notebook, "llmrl.sweep(")[-1]
    assert "player_0" in show_output(notebook, 'api="pettingzoo")  # a ParallelEnv')[-1]
    assert "cleanup: " in show_output(notebook, "llmrl.plan(")[-1]


@pytest.mark.long
@pytest.mark.slow
def test_progress_bar_follows_run(notebook):
    """Check that one line is updated in place, without log lines, and that warnings appear once."""
    (cell,) = [cell for cell in notebook[0].cells if "llmrl.train(" in cell.source]
    texts = "".join(output.get("text", "") for output in cell.outputs if output.output_type == "stream")
    assert re.search(r"\d+/\d+ steps", texts)
    assert texts.count("WARNING") == 1 and "INFO" not in texts


@pytest.mark.long
@pytest.mark.slow
def test_stop_button_keeps_resumable_run(tmp_path):
    """Interrupt a kernel during a run; the next cell still works."""
    kernel, client = start_new_kernel(cwd=str(tmp_path))
    try:
        small = {"env.n_envs": 2, "design.steps": 4000, "design.adapt_rounds": 1, "design.validate_episodes": 2}
        options = small | {"design.references": 0, "design.confirm_steps": 0, "design.evaluations": 0}
        running = client.execute(f"import llmrl\nllmrl.train('env=escape_room', 'principal=ucb', **{options})")
        while not any(path.stat().st_size for path in tmp_path.rglob("metrics.jsonl")):
            time.sleep(0.05)
        kernel.interrupt_kernel()
        reply = reply_to(client, running)
        assert reply["ename"] == "KeyboardInterrupt" and "is saved" in reply["evalue"]
        assert reply_to(client, client.execute("1 + 1"))["status"] == "ok"
    finally:
        kernel.shutdown_kernel(now=True)
    assert llmrl.load(tmp_path / "outputs").runs.state.tolist() == ["stopped"]


def reply_to(client, message: str) -> dict:
    while True:
        reply = client.get_shell_msg(timeout=300)
        if reply["parent_header"].get("msg_id") == message:
            return reply["content"]


def test_page_documents_all_functions():
    text = PAGE.read_text()
    functions = [name for name in llmrl.__all__ if name[0].islower()]
    assert len(functions) == 8 and not [name for name in functions if f"llmrl.{name}(" not in text]


def test_public_names_are_discoverable():
    assert set(llmrl.__all__) == set(dir(llmrl))
    for name in llmrl.__all__:
        assert getattr(llmrl, name).__doc__
    with pytest.raises(AttributeError, match="'trane'"):
        _ = llmrl.trane


def test_package_import_is_lazy():
    code = "import sys; before = set(sys.modules); import llmrl; print(sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(Path(llmrl.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['__future__', 'llmrl']\n"


def test_type_checker_accepts_signatures():
    """Compare the names for editors with the names at run time."""
    source = Path(llmrl.__file__).read_text()
    imports = re.findall(r"^    from (llmrl\.api\.\w+) import (.+)$", source, flags=re.MULTILINE)
    homes = {name.strip(): home for home, names in imports for name in names.split(",")}
    assert homes == {name: f"llmrl.api.{home}" for name, home in llmrl._MODULE_BY_NAME.items()}
