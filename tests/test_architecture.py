"""The import graph is the one docs/architecture.md draws."""

import ast
from pathlib import Path

import hypothesis

import llmrl

ROOT = Path(llmrl.__file__).parent
# Layer -> layers it may import at module level or inside functions. `core` may name others for type checking only.
ALLOWED = {
    "core": set(),
    "networks": {"core"},
    "envs": {"core"},
    "llms": {"core"},
    "run": {"core"},
    "analysis": {"core", "llms", "run"},
    "tuning": {"core", "run", "analysis"},
    "teachers": {"core", "llms"},
    "learners": {"core", "networks"},
    "principals": {"core", "llms", "networks", "learners"},
    "agents": {"core", "networks", "learners", "run"},
    "players": {"core", "envs", "llms"},
    "language": {"core", "networks", "learners", "llms", "run"},
    "finetuning": {"core", "llms", "run", "analysis", "principals", "loops"},
    "sweeps": {"core", "run", "analysis"},
    "loops": {"core", "learners", "run", "analysis"},
}
TOP = {"config", "experiment", "evaluation", "display", "api", "cli"}
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
    "cmaes",
    "pandas",
    "pyarrow",
}
TORCH_LAYERS = {"networks", "learners", "agents", "teachers", "players", "language"}
# Folders of other layers that are torch programs: they are imported when one of their environments is built.
TORCH_FOLDERS = {"envs/native"}
# Nobody imports these at module level but who wants the libraries they are about.
ABOUT_THEM = {
    "envs/babyai/text_wrapper.py",
    "envs/adapters/gymnasium_env.py",
    "envs/adapters/parallel.py",
    "envs/adapters/spaces.py",
    "envs/gym/tasks/gymnasium_envs.py",
    "envs/rooms/room_env.py",
    "finetuning/keeper.py",
    "llms/local/tree.py",
    "llms/local/scorer.py",
    "llms/local/seq2seq_scorer.py",
    "llms/local/causal_scorer.py",
    "sweeps/preload.py",
}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(tree: ast.AST, top_only: bool):
    """Imported module names; `top_only` leaves out those inside functions. Type-checking imports never count."""
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif not (top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from imports(node, top_only)


def layer_files():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if len(parts) > 1:
            yield parts[0], path


def test_every_folder_is_a_known_layer():
    assert {layer for layer, _ in layer_files()} == {*ALLOWED, *TOP}


def test_layers_import_only_downwards():
    wrong = []
    for layer, path in layer_files():
        if layer in TOP:
            continue
        for name in imports(ast.parse(path.read_text()), top_only=False):
            parts = name.split(".")
            if parts[0] == "llmrl" and len(parts) > 1 and parts[1] != layer and parts[1] not in ALLOWED[layer]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, wrong


def test_heavy_packages_are_imported_lazily():
    wrong = []
    for layer, path in layer_files():
        if path.relative_to(ROOT).as_posix() in ABOUT_THEM:
            continue
        for name in imports(ast.parse(path.read_text()), top_only=True):
            package = name.split(".")[0]
            torch_program = layer in TORCH_LAYERS or path.parent.relative_to(ROOT).as_posix() in TORCH_FOLDERS
            if package in HEAVY and not (package == "torch" and torch_program):
                wrong.append(f"{path.relative_to(ROOT)} imports {name} at module level")
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
