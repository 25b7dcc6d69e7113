"""Values of experiments are in conf/, where they are composed and seen: none is in src under the name of an option.

Looked for is a number, or a table of values, that a program chooses by the name of an environment, a study or a
treatment: in a mapping, in rows, in a `match`, or behind a comparison.
"""

import ast
from pathlib import Path

import pytest

import llmrl
from llmrl.config.treatments import list_studies, list_studies_by_treatment
from llmrl.core.option_files import list_option_names

SRC = Path(llmrl.__file__).parents[1]
ENVS = {*list_option_names("env")}
NAMES = (
    ENVS | {*list_studies(), *(study.partition("/")[2] for study in list_studies())} | {*list_studies_by_treatment()}
)
ALLOWED = {
    ("llmrl/envs/substrate/substrate_rules.py", game): "what the substrate is: sizes, places and timings"
    for game in ("cleanup", "harvest")
} | {("llmrl/envs/native/game_arrays.py", "harvest"): "which fields of the state the substrate has"}
"""(file, name) -> why a number stands beside it."""


def find_outermost_values(source):
    """Return the lines and names of conf under which `source` chooses values, `[(line, name)]`."""
    return sorted({(line_number(node), name) for node in ast.walk(ast.parse(source)) for name in chosen_values(node)})


def line_number(node):
    return node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno


def chosen_values(node):
    """Names of options that a node of a syntax tree chooses values by."""
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [key.value for key, value in pairs if has_option_name(key) and has_values(value)]
    if isinstance(node, ast.Call):
        mapping = isinstance(node.func, ast.Name) and node.func.id == "dict"  # others' arguments may be called so
        names = NAMES if mapping else ENVS
        return [keyword.arg for keyword in node.keywords if keyword.arg in names and has_values(keyword.value)]
    if isinstance(node, ast.Tuple | ast.List) and node.elts and has_option_name(node.elts[0]):
        return [node.elts[0].value] if any(map(has_values, node.elts[1:])) else []
    if (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Subscript)
        and has_option_name(node.targets[0].slice)
    ):
        return [node.targets[0].slice.value] if has_values(node.value) else []
    if isinstance(node, ast.If | ast.IfExp):
        branches = [*node.body, *node.orelse] if isinstance(node, ast.If) else [node.body, node.orelse]
        return compared_values(node.test) if any(map(assigns, branches)) else []
    if isinstance(node, ast.match_case):
        patterns = [pattern.value for pattern in ast.walk(node.pattern) if isinstance(pattern, ast.MatchValue)]
        return (
            [pattern.value for pattern in patterns if has_option_name(pattern)] if any(map(assigns, node.body)) else []
        )
    return []


def has_option_name(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in NAMES


def compared_values(test):
    """Names of options that a condition compares something with."""
    sides = [
        side
        for comparison in ast.walk(test)
        if isinstance(comparison, ast.Compare)
        for side in (comparison.left, *comparison.comparators)
    ]
    return [node.value for side in sides for node in ast.walk(side) if has_option_name(node)]


def assigns(node):
    """Return whether a branch is, assigns or returns a value."""
    if isinstance(node, ast.expr):
        return has_values(node)
    values = [
        statement.value
        for statement in ast.walk(node)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return)
    ]
    return any(value is not None and has_values(value) for value in values)


def has_values(node):
    """Return whether a node is a number, or a literal that contains one."""
    if isinstance(node, ast.UnaryOp):
        return has_values(node.operand)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.Dict):
        return any(map(has_values, node.values))
    if isinstance(node, ast.Call):
        return any(map(has_values, [*node.args, *(keyword.value for keyword in node.keywords)]))
    return isinstance(node, ast.List | ast.Tuple | ast.Set) and any(map(has_values, node.elts))


def test_option_names_are_nonempty():
    assert {"hopper", "escape_room", "search/linear", "legislative/harvest", "props_plus", "ucb"} <= NAMES


@pytest.mark.slow
def test_src_has_no_experiment_values():
    files = {path.relative_to(SRC).as_posix(): path for path in SRC.glob("[hl]*/**/*.py")}
    assert len(files) > 200
    places = [
        (file, line, name) for file, path in files.items() for line, name in find_outermost_values(path.read_text())
    ]
    assert not [(file, line, name) for file, line, name in places if (file, name) not in ALLOWED]


def test_allowlist_is_current():
    for file, name in ALLOWED:
        assert name in {option for _, option in find_outermost_values((SRC / file).read_text())}


@pytest.mark.parametrize(
    "source",
    [
        'OPTIMA = {"hopper": 1000.0, "swimmer": -250}',
        'PRESETS = {"legislative/harvest": {"design": {"steps": 3000}}}',
        'PRESETS = {"ucb": Settings(points=11)}',
        'POINTS = (("escape_room", 3), ("harvest", 11))',
        'TABLE["maze"] = [0, 1]',
        'OPTIMA = dict(props_plus=1000.0)',
        'points = 3 if env == "escape_room" else 11',
        'if treatment in ("ucb", "thompson"):\n    points = 3',
        'def points(env):\n    if env.name == "escape_room":\n        return 3\n    return 11',
        'match treatment:\n    case "props" | "props_plus":\n        warmup = 20',
    ],
)  # fmt: skip
def test_value_detection(source):
    assert find_outermost_values(source)


@pytest.mark.parametrize(
    "source",
    [
        'WORDS = {"hopper": "hops", "maze": Maze}',
        'if env == "harvest":\n    rules = Harvest()',
        'SIZES = {"width": 3, "height": 4}',
        'names = ["hopper", "swimmer"]',
        'steps = 3 if kind == "design" else 4',
    ],
)
def test_strings_are_ignored(source):
    assert not find_outermost_values(source)
