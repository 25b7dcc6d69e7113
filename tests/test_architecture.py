"""Imports are those that the table of docs/architecture.md allows."""

import ast
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
    found: dict[str, set[str]] = {}
    for package, _, others in rows:
        named = set(re.findall("`([a-z_]+)`", others))
        above = set(found) if "all above" in others else set()
        found[package.strip(" `")] = above - named if above else named
    return found


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
TORCH_LAYERS = {"networks", "algorithms", "rollout", "agents", "teachers"}
# Folders of other layers that are torch programs: they are imported when one of their environments is built.
TORCH_FOLDERS = ("llmrl.envs.native",)
# Nobody imports these at module level but who wants the libraries they are about.
ABOUT_THEM = {
    "envs/babyai/text_wrapper.py",
    "envs/adapters/gymnasium_env.py",
    "envs/adapters/parallel.py",
    "envs/adapters/gymnasium_spaces.py",
    "envs/gym/tasks/gymnasium_envs.py",
    "envs/rooms/room_env.py",
    "finetuning/checkpoint_callback.py",
    "llms/local/token_tree.py",
    "llms/local/candidate_scorer.py",
    "llms/local/seq2seq_scorer.py",
    "llms/local/causal_scorer.py",
    "sweeps/preload.py",
}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(tree: ast.AST, top_only: bool = False):
    """Imported module names; `top_only` leaves out those inside functions and those for type checking."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # What is imported from a package may be one of its modules.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (top_only and (is_type_checking(node) or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))):
            yield from imports(node, top_only)


def module_files():
    """Of every module its name, its package, and its file."""
    for path in sorted([*ROOT.rglob("*.py"), *(ROOT.parent / "hydra_plugins").rglob("*.py")]):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, _package(name), path


def _package(name: str) -> str:
    first, _, rest = name.partition(".")
    if name == "llmrl.__main__":
        return "cli"
    return rest.partition(".")[0] if first == "llmrl" else first


def import_graph() -> dict[str, set[str]]:
    """Module -> modules of ours that it imports anywhere; a package's `__init__` counts where it is named itself."""
    modules = {name: path for name, _, path in module_files()}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        named = set()
        for each in imports(ast.parse(path.read_text())):
            while each not in modules and "." in each:
                each = each.rpartition(".")[0]
            named.add(each)
        upwards = {each for module, each in EXCEPTIONS if module == name}
        graph[name] = (named & modules.keys()) - {name, "llmrl"} - upwards
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of a graph; empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_every_folder_is_a_known_package():
    assert {package for _, package, _ in module_files()} - {""} == set(ALLOWED)


def test_packages_import_only_those_that_they_may():
    packages = {name: package for name, package, _ in module_files()}
    wrong = [
        f"{name} imports {each}"
        for name, named in import_graph().items()
        for each in named
        if packages[name] and packages[each] not in {packages[name], *ALLOWED[packages[name]]}
    ]
    assert not wrong, wrong


def test_what_packages_may_import_goes_round_in_no_circle():
    assert not circle(ALLOWED)


def test_modules_import_each_other_in_no_circle():
    """Neither at module level nor inside functions nor for type checking: a circle is two modules that are one."""
    assert not circle(import_graph())


def test_the_table_says_what_the_page_says():
    assert ALLOWED["core"] == set() and ALLOWED["teachers"] == {"core", "llms"}
    assert ALLOWED["cli"] == set(ALLOWED) - {"cli", "hydra_plugins"} and "evaluation" not in ALLOWED["hydra_plugins"]


def test_circles_are_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) and not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    code = "if TYPE_CHECKING:\n    import a\ndef f():\n    from b import c\nimport d.e\n"
    assert list(imports(ast.parse(code))) == ["a", "b.c", "d.e"]
    assert list(imports(ast.parse(code), top_only=True)) == ["d.e"]


def test_heavy_packages_are_imported_lazily():
    wrong = []
    for name, layer, path in module_files():
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).as_posix() in ABOUT_THEM:
            continue
        for each in imports(ast.parse(path.read_text()), top_only=True):
            package = each.split(".")[0]
            torch_program = layer in TORCH_LAYERS or name.startswith(TORCH_FOLDERS)
            if package in HEAVY and not (package == "torch" and torch_program):
                wrong.append(f"{name} imports {each} at module level")
    assert not wrong, wrong


def test_properties_are_tried_without_a_deadline():
    """One profile in conftest.py says so; a test with a deadline of its own would fail on a loaded machine."""
    assert hypothesis.settings().deadline is None
    tests = Path(__file__).parent
    own = [path.name for path in tests.rglob("test_*.py") if "deadline=" in _decorators(path)]
    assert not own


def _decorators(path: Path) -> str:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return " ".join(ast.unparse(decorator) for node in nodes for decorator in node.decorator_list)
