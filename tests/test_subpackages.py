"""Optional subpackages: the core works without each of them, and each needs only what docs/architecture.md states."""

import ast
import functools
import re
import subprocess
import sys

import pytest
from test_architecture import PAGE, import_graph, imports, module_files

from some import mark_long_except

SECTION = "## Optional subpackages"
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if any(name == hidden or name.startswith(hidden + ".") for hidden in {hidden!r}):
            raise ModuleNotFoundError(f"{{name}} is hidden", name=name)

sys.meta_path.insert(0, Hidden())
"""
RUN = """
from llmrl.cli.train import main
options = "env=escape_room agent=ppo principal=ucb llm=none loggers=[jsonl] +debug=quick name=core"
sys.argv = ["llmrl-train", *options.split()]
main()
"""


def read_table() -> dict[str, set[str]]:
    """Return for each optional subpackage the packages and modules of llmrl that it may import."""
    table = PAGE.read_text().partition(SECTION)[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    return {f"llmrl.{row[0].strip(' `')}": set(re.findall(r"`([a-z_. ]+)`", row[-1])) for row in rows}


TABLE = read_table()
ROLES = re.compile(r"llmrl\.(llms|agents\.llm_player|principals\.(llm_|vote)|teachers|finetuning)")
"""Modules whose subject is a chat model; they import the reply parsers at module level."""


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_table_lists_subpackages():
    assert {
        "llmrl.llms.reading",
        "llmrl.analysis",
        "llmrl.envs.native",
        "llmrl.envs.melting_pot",
        "llmrl.run.sinks",
        "llmrl.finetuning",
        "llmrl.chat_learning",
    } == set(TABLE)


@pytest.mark.parametrize("package", TABLE)
def test_subpackage_imports_only_stated_modules(package):
    if "all above" in TABLE[package] or (not TABLE[package] and package == "llmrl.finetuning"):
        pytest.skip("may import everything")
    graph = import_graph()
    undeclared = {
        f"{module} imports {dependency}"
        for module in graph
        if is_inside(module, package)
        for dependency in graph[module]
        if not any(is_inside(dependency, name) for name in [package, *(f"llmrl.{other}" for other in TABLE[package])])
    }
    assert not undeclared


@functools.cache
def top_level_imports() -> dict[str, list[str]]:
    """Return what each module imports outside functions."""
    return {name: [*imports(ast.parse(path.read_text()), top_only=True)] for name, _, path in module_files()}


@pytest.mark.parametrize("package", TABLE)
def test_core_imports_subpackage_only_on_use(package):
    top_imports = top_level_imports()
    eager = {
        f"{name} imports {dependency}"
        for name, dependencies in top_imports.items()
        if not is_inside(name, package) and not (package == "llmrl.llms.reading" and ROLES.match(name))
        for dependency in dependencies
        if is_inside(dependency, package) and dependency.rpartition(".")[0] in {*top_imports, package}
    }
    assert not eager


@pytest.mark.slow
@pytest.mark.parametrize(
    "hidden", mark_long_except([(*TABLE,)], [(*TABLE,), *((package,) for package in TABLE)]), ids="-".join
)
def test_core_runs_without_subpackage(hidden, tmp_path):
    """A society under a principal learns and is evaluated while these subpackages cannot be imported."""
    code = HIDE.format(hidden=hidden) + RUN
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    assert list(tmp_path.glob("outputs/core/*/*/summary.json"))
