"""Writes the notebooks of the tutorials, `docs/learn/*.ipynb`, from their pages, which are the source.

A block of bash or Python becomes a cell, all else text between them. Stored outputs of unchanged cells remain.

python scripts/notebooks.py
python scripts/notebooks.py --execute [govern_a_village ...]     # runs cells, stores what they show; half an hour
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import tempfile
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from PIL import Image

FOLDER = Path(__file__).parents[1] / "docs" / "learn"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
PATHS = """\
# The commands of the environment that this kernel runs in.
import os
import sys
from pathlib import Path

os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}\""""
"""The first cell: a kernel need not have been started from an activated environment."""

COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""Control sequences that kernels ask commands for and pages of code hosts show as text."""
LARGEST_IMAGE = 100_000
"""Most characters of a stored picture, base64; films have megabytes."""
WIDTH = 980
"""Most columns of a stored PNG picture."""


def pages() -> list[Path]:
    """Return the pages of the tutorials."""
    return sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")


def notebook(page: str) -> nbformat.NotebookNode:
    """Make a notebook of a page's text, without outputs."""
    parts = BLOCK.split(page)  # text, language, code, text, ...
    cells = [new_markdown_cell(parts[0].strip()), new_code_cell(PATHS)]
    for language, code, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        cells.append(new_code_cell(f"%%bash\n{code.strip()}" if language == "bash" else code.strip()))
        if text.strip():
            cells.append(new_markdown_cell(text.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # drawn at random otherwise
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=cells, metadata=metadata)


def is_executed(source: str) -> bool:
    """Return whether `--execute` runs a cell: commands for hosted models need a key and cost money."""
    return "llm=gpt" not in source


def copy_outputs(target: nbformat.NotebookNode, source: nbformat.NotebookNode) -> None:
    """Copy the outputs of cells in `source` to those cells of `target` that have the same text."""
    stored = {cell.source: cell for cell in source.cells if cell.cell_type == "code"}
    for cell in target.cells:
        if cell.cell_type == "code" and cell.source in stored:
            cell.outputs = stored[cell.source].outputs
            cell.execution_count = stored[cell.source].execution_count


def execute(made: nbformat.NotebookNode, folder: Path) -> None:
    """Run the cells of a notebook in `folder`, and store what they print and show.

    Args:
        made: the notebook; its code cells get outputs.
        folder: working directory of the cells. Its path is left out of outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbclient

    executed = nbformat.v4.new_notebook(metadata=made.metadata)
    executed.cells = [cell for cell in made.cells if cell.cell_type == "code" and is_executed(cell.source)]
    place = {"metadata": {"path": str(folder)}}
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # without it, renderers print an error
    nbclient.NotebookClient(executed, timeout=3600, startup_timeout=300, resources=place).execute()
    for cell in executed.cells:
        cell.metadata = {}  # times of execution
        cell.outputs = [shortened(output, folder) for output in joined(cell.outputs)]
    copy_outputs(made, executed)


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join pieces of one stream that follow each other: a kernel sends them as they are printed."""
    result: list[nbformat.NotebookNode] = []
    for output in outputs:
        if result and output.output_type == "stream" and result[-1].get("name") == output.name:
            result[-1]["text"] += output["text"]
        else:
            result.append(output)
    return result


def shortened(output: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Leave out of an output the path of `folder`, colors, and pictures of more than `LARGEST_IMAGE` characters.

    PNG pictures are compressed.
    """
    if "text" in output:
        output["text"] = COLOR.sub("", output["text"].replace(f"{folder}/", ""))
    for kind, value in list(output.get("data", {}).items()):
        if kind == "image/png":
            output["data"][kind] = value = compressed(value)
        if kind.startswith("image/") and len(value) > LARGEST_IMAGE:
            del output["data"][kind]
            output["data"]["text/plain"] = f"a picture of {len(value) * 3 // 4 / 1e6:.1f} MB, shown when the cell runs"
    return output


def compressed(png: str) -> str:
    """Return a PNG picture in base64 with at most `WIDTH` columns and 64 colors, or `png` if that is smaller."""
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        picture = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
    picture.thumbnail((WIDTH, picture.height))
    file = io.BytesIO()
    picture.quantize(64).save(file, "png", optimize=True)
    return min(png, base64.b64encode(file.getvalue()).decode(), key=len)


def written(page: Path, executed: bool = False) -> str:
    """Return the content of the file that belongs beside a page.

    Args:
        page: a tutorial.
        executed: whether to run the cells; else outputs are those of the file that is there.
    """
    made = notebook(page.read_text(encoding="utf-8"))
    path = page.with_suffix(".ipynb")
    if executed:
        with tempfile.TemporaryDirectory() as folder:
            execute(made, Path(folder).resolve())
    elif path.exists():
        copy_outputs(made, nbformat.read(path, as_version=4))
    return nbformat.writes(made) + "\n"


def main() -> None:
    """Write all of them, or those that are named."""
    parser = argparse.ArgumentParser(description="Write the notebooks of the tutorials from their pages.")
    parser.add_argument("names", nargs="*", help="names of pages; without any, all")
    parser.add_argument("--execute", action="store_true", help="run the cells and store their outputs")
    arguments = parser.parse_args()
    for page in pages():
        if page.stem in (arguments.names or [page.stem]):
            page.with_suffix(".ipynb").write_text(written(page, arguments.execute), encoding="utf-8")


if __name__ == "__main__":
    main()
