"""Imports are those that the table of docs/architecture.md allows."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import hypothesis

import llmrl

ROOT = Path(llmrl.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def allowed() -> dict[str, set[str]]:
    """Package -> packages it may import, be it at module level, inside functions, or for type checking only."""
    table = PAGE.read_text().partition("## Who may import whom")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    imports_by_package: dict[str, set[str]] = {}
    for package, _, description in rows:
        packages = set(re.findall("`([a-z_]+)`", description))
        includes_upper = set(imports_by_package) if "all above" in description else set()
        imports_by_package[package.strip(" `")] = includes_upper - packages if includes_upper else packages
    return imports_by_package


ALLOWED = allowed()
EXCEPTIONS: set[tuple[str, str]] = set()
"""Imports that go upwards, or round in a circle: (module, what it imports)."""
HEAVY = {
    "torch",
    "litellm",
    "meltingpot",
    "dmlab2d",
    "transformers",
    "trl",
    "peft",
    "datasets",
    "matplotlib",
    "imageio",
    "gymnasium",
    "pettingzoo",
    "optuna",
    "stable_baselines3",
    "botorch",
    "gpytorch",
    "scipy",
    "sklearn",
    "numba",
    "llvmlite",
    "cmaes",
    "pandas",
    "pyarrow",
}
TORCH_LAYERS = {"networks", "algorithms", "chat_learning", "rollout", "agents", "teachers"}
# Folders of other layers that are torch programs: they are imported when one of their environments is built.
TORCH_FOLDERS = ("llmrl.envs.native",)
# Nobody imports these at module level but who wants the libraries they are about.
DESCRIBED_PACKAGES = {
    "envs/adapters/gymnasium_env.py",
    "envs/adapters/parallel.py",
    "envs/gym/tasks/gymnasium_envs.py",
    "envs/pettingzoo/text_worlds.py",
    "finetuning/checkpoint_callback.py",
    "llms/local/token_tree.py",
    "llms/local/candidate_scorer.py",
    "llms/local/scorers.py",
    "sweeps/preload.py",
}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(tree: ast.AST, top_only: bool = False):
    """Return imported module names; `top_only` leaves out those inside functions and those for type checking."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # What is imported from a package may be one of its modules.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (top_only and (is_type_checking(node) or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))):
            yield from imports(node, top_only)


def module_files():
    """Return the name, package and file of every module."""
    for path in sorted([*ROOT.rglob("*.py"), *(ROOT.parent / "hydra_plugins").rglob("*.py")]):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, _package(name), path


def _package(name: str) -> str:
    first, _, rest = name.partition(".")
    if name == "llmrl.__main__":
        return "cli"
    return rest.partition(".")[0] if first == "llmrl" else first


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Return the modules of ours that each module imports anywhere.

    A package's `__init__` counts where it is named itself.
    """
    modules = {name: path for name, _, path in module_files()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        packages = set()
        for module in imports(ast.parse(path.read_text())):
            while module not in modules and "." in module:
                module = module.rpartition(".")[0]
            packages.add(module)
        upwards = {target for module, target in EXCEPTIONS if module == name}
        graph[name] = (packages & modules.keys()) - {name, "llmrl"} - upwards
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of a graph; empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_folders_match_package_table():
    assert {package for _, package, _ in module_files()} - {""} == set(ALLOWED)


def test_packages_respect_import_table():
    packages = {name: package for name, package, _ in module_files()}
    wrong = [
        f"{name} imports {target}"
        for name, targets in import_graph().items()
        for target in targets
        if packages[name] and packages[target] not in {packages[name], *ALLOWED[packages[name]]}
    ]
    assert not wrong, wrong


def test_package_table_is_acyclic():
    assert not circle(ALLOWED)


def test_modules_have_no_import_cycles():
    """Neither at module level nor inside functions nor for type checking: a circle is two modules that are one."""
    assert not circle(import_graph())


def test_table_matches_page():
    assert ALLOWED["core"] == set() and ALLOWED["teachers"] == {"core", "llms"}
    assert ALLOWED["cli"] == set(ALLOWED) - {"cli", "hydra_plugins"} and "evaluation" not in ALLOWED["hydra_plugins"]


def test_circle_detection():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) and not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    code = "if TYPE_CHECKING:\n    import a\ndef f():\n    from b import c\nimport d.e\n"
    assert list(imports(ast.parse(code))) == ["a", "b.c", "d.e"]
    assert list(imports(ast.parse(code), top_only=True)) == ["d.e"]


def test_heavy_packages_load_lazily():
    wrong = []
    for name, layer, path in module_files():
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).as_posix() in DESCRIBED_PACKAGES:
            continue
        for module in imports(ast.parse(path.read_text()), top_only=True):
            package = module.split(".")[0]
            torch_program = layer in TORCH_LAYERS or name.startswith(TORCH_FOLDERS)
            if package in HEAVY and not (package == "torch" and torch_program):
                wrong.append(f"{name} imports {module} at module level")
    assert not wrong, wrong


def test_hypothesis_has_no_deadline():
    """One profile in conftest.py says so; a test with a deadline of its own would fail on a loaded machine."""
    assert hypothesis.settings().deadline is None
    tests = Path(__file__).parent
    naming = [path for path in tests.rglob("test_*.py") if "deadline=" in path.read_text()]
    overrides = [path.name for path in naming if "deadline=" in _decorators(path)]
    assert not overrides


def _decorators(path: Path) -> str:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return " ".join(ast.unparse(decorator) for node in nodes for decorator in node.decorator_list)
