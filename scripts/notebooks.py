"""Write the notebooks of the tutorials, `docs/learn/*.ipynb`, from their Markdown pages.

Each block of bash or Python becomes a code cell; all other text becomes Markdown cells. Stored outputs of unchanged
cells are preserved.

python scripts/notebooks.py
python scripts/notebooks.py --execute [govern_a_village ...]     # executes cells and stores outputs; half an hour
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
CODE_BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
PATHS = """\
# The commands of the environment that this kernel runs in.
import os
import sys
from pathlib import Path

os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}\""""
"""First cell, for kernels that were not started from an activated environment."""

COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""Color sequences, which code hosts display as text."""
MAX_IMAGE_LENGTH = 100_000
"""Maximum length of a stored image, base64 characters; videos are larger."""
MAX_WIDTH = 980
"""Maximum width of a stored PNG image, pixels."""


def find_pages() -> list[Path]:
    """Return the pages of the tutorials."""
    return sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")


def make_notebook(page: str) -> nbformat.NotebookNode:
    """Create a notebook without outputs from the text of a page."""
    parts = CODE_BLOCK.split(page)  # text, language, code, text, ...
    cells = [new_markdown_cell(parts[0].strip()), new_code_cell(PATHS)]
    for language, code, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        cells.append(new_code_cell(f"%%bash\n{code.strip()}" if language == "bash" else code.strip()))
        if text.strip():
            cells.append(new_markdown_cell(text.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # random by default
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=cells, metadata=metadata)


def is_executable(source: str) -> bool:
    """Return whether `--execute` runs a cell; commands with hosted models are skipped, because they are charged."""
    return "llm=gpt" not in source


def copy_outputs(target: nbformat.NotebookNode, source: nbformat.NotebookNode) -> None:
    """Copy the outputs of the cells of `source` to the cells of `target` with the same text."""
    stored_cells = {cell.source: cell for cell in source.cells if cell.cell_type == "code"}
    for cell in target.cells:
        if cell.cell_type == "code" and cell.source in stored_cells:
            cell.outputs = stored_cells[cell.source].outputs
            cell.execution_count = stored_cells[cell.source].execution_count


def execute(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Execute the cells of a notebook, and store their outputs in it.

    Args:
        notebook: notebook whose code cells receive outputs.
        folder: working directory of the cells. Its path is removed from outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbclient

    executed_notebook = nbformat.v4.new_notebook(metadata=notebook.metadata)
    executed_notebook.cells = [
        cell for cell in notebook.cells if cell.cell_type == "code" and is_executable(cell.source)
    ]
    resources = {"metadata": {"path": str(folder)}}
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())  # without it, renderers print an error
    nbclient.NotebookClient(executed_notebook, timeout=3600, startup_timeout=300, resources=resources).execute()
    for cell in executed_notebook.cells:
        cell.metadata = {}  # times of execution
        cell.outputs = [shorten_output(output, folder) for output in join_streams(cell.outputs)]
    copy_outputs(notebook, executed_notebook)


def join_streams(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join consecutive outputs of the same stream, which kernels send in parts."""
    joined_outputs: list[nbformat.NotebookNode] = []
    for output in outputs:
        if joined_outputs and output.output_type == "stream" and joined_outputs[-1].get("name") == output.name:
            joined_outputs[-1]["text"] += output["text"]
        else:
            joined_outputs.append(output)
    return joined_outputs


def shorten_output(output: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Remove the path of `folder`, colors and images of more than `MAX_IMAGE_LENGTH` characters from an output.

    PNG images are compressed.
    """
    if "text" in output:
        output["text"] = COLOR.sub("", output["text"].replace(f"{folder}/", ""))
    for kind, value in list(output.get("data", {}).items()):
        if kind == "image/png":
            output["data"][kind] = value = compress_png(value)
        if kind.startswith("image/") and len(value) > MAX_IMAGE_LENGTH:
            del output["data"][kind]
            output["data"]["text/plain"] = f"a picture of {len(value) * 3 // 4 / 1e6:.1f} MB, shown when the cell runs"
    return output


def compress_png(png: str) -> str:
    """Return a PNG image (base64) with a width of at most `MAX_WIDTH` and 64 colors, or `png` if it is smaller."""
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        picture = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
    picture.thumbnail((MAX_WIDTH, picture.height))
    file = io.BytesIO()
    picture.quantize(64).save(file, "png", optimize=True)
    return min(png, base64.b64encode(file.getvalue()).decode(), key=len)


def render_notebook(page: Path, use_execution: bool = False) -> str:
    """Return the content of the notebook file of a page.

    Args:
        page: path of the page.
        use_execution: whether to execute the cells; otherwise, outputs are copied from the existing file.
    """
    notebook = make_notebook(page.read_text(encoding="utf-8"))
    path = page.with_suffix(".ipynb")
    if use_execution:
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, Path(folder).resolve())
    elif path.exists():
        copy_outputs(notebook, nbformat.read(path, as_version=4))
    return nbformat.writes(notebook) + "\n"


def main() -> None:
    """Write the notebooks in the command line, or all notebooks."""
    parser = argparse.ArgumentParser(description="Write the notebooks of the tutorials from their pages.")
    parser.add_argument("names", nargs="*", help="names of pages (default: all)")
    parser.add_argument("--execute", action="store_true", help="execute the cells and store their outputs")
    arguments = parser.parse_args()
    for page in find_pages():
        if page.stem in (arguments.names or [page.stem]):
            page.with_suffix(".ipynb").write_text(render_notebook(page, arguments.execute), encoding="utf-8")


if __name__ == "__main__":
    main()
