"""Check the share of names that contain a fragment of a sentence, and the first words of docstrings.

Names are those of functions, classes, arguments, variables and attributes. Fragments are listed in `naming_words.txt`.
The command fails if the share of a folder exceeds its limit or if a docstring begins with a question word.

usage: naming.py [--where WORD] [FOLDER ...]
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = {"src": 16.5, "tests": 23.5}  # per 1,000 names; lower them when the share has fallen
QUESTION_WORDS = {"What", "Whether", "How", "Of", "Who", "Where", "Which", "Why", "When"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def read_words(path: Path = ROOT / "scripts" / "naming_words.txt") -> tuple[frozenset[str], frozenset[str]]:
    """Return the fragments and the accepted participles."""
    sections: dict[str, set[str]] = {"fragments": set(), "participles": set()}
    words: set[str] = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            words = sections[line.strip("[]")]
        elif not line.startswith("#"):
            words.update(line.split())
    return frozenset(sections["fragments"]), frozenset(sections["participles"])


def iterate_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every definition and assignment."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def iterate_question_docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the first word of docstrings that begin with a question word."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            words = (ast.get_docstring(node) or "").split()
            if words and words[0].strip("`,.:") in QUESTION_WORDS:
                yield node.body[0].lineno, words[0]


def find_fragments(name: str, fragments: frozenset[str], participles: frozenset[str]) -> list[str]:
    """Return the words of a name that are fragments."""
    words = [word.lower() for word in _WORD.findall(name)]
    return [w for w in words if w in fragments or (w.endswith("ed") and len(w) > 4 and w not in participles)]


def check_folder(folder: str, where: str | None) -> tuple[float, Counter[str], list[str]]:
    """Return the share of names with fragments per 1,000, the counts of fragments and the messages to print."""
    fragments, participles = read_words()
    n_names, n_fragments, counts, messages = 0, 0, Counter[str](), []
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, name in iterate_names(tree):
            matches = find_fragments(name, fragments, participles)
            n_names += 1
            n_fragments += bool(matches)
            counts.update(matches)
            if where in matches:
                messages.append(f"{path.relative_to(ROOT)}:{line}: {name}")
        for line, word in iterate_question_docstrings(tree):
            messages.append(f"{path.relative_to(ROOT)}:{line}: docstring begins with {word}")
    return 1000 * n_fragments / max(n_names, 1), counts, messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", default=list(LIMITS))
    parser.add_argument("--where", help="print all names that contain this word")
    args = parser.parse_args()
    failed = False
    for folder in args.folders:
        share, counts, messages = check_folder(folder, args.where)
        limit = LIMITS.get(folder)
        for message in messages:
            sys.stdout.write(f"{message}\n")
        top = ", ".join(f"{word} {count}" for word, count in counts.most_common(15))
        share_text = f"{share:.1f} of 1,000 names contain a fragment (limit {limit})"
        sys.stdout.write(f"{folder}: {share_text}; most frequent: {top}\n")
        failed |= any(": docstring begins" in m for m in messages) or (limit is not None and share > limit)
    sys.exit(failed)


if __name__ == "__main__":
    main()
