"""The container recipe: built where a builder is at hand; its stages, files and commands are looked at anywhere."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "Containerfile"
IGNORES = ROOT / ".dockerignore"
"""Which podman and buildah read, too."""


@dataclass(frozen=True)
class Instruction:
    """One of a recipe, with its lines joined."""

    word: str
    text: str
    stage: int


def instructions() -> list[Instruction]:
    """Those of the recipe, in their order; the first is `FROM`."""
    lines = [line for line in RECIPE.read_text().splitlines() if not line.lstrip().startswith("#")]
    found: list[Instruction] = []
    for line in filter(None, re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()):
        word, _, text = line.partition(" ")
        stage = (found[-1].stage if found else -1) + (word == "FROM")
        found.append(Instruction(word, text.strip(), stage))
    return found


def of(word: str, stage: int | None = None) -> list[str]:
    return [each.text for each in instructions() if each.word == word and stage in (None, each.stage)]


def test_every_instruction_is_one_and_the_stages_follow_each_other() -> None:
    known = {"FROM", "ENV", "COPY", "RUN", "USER", "WORKDIR", "CMD"}
    assert {each.word for each in instructions()} <= known and instructions()[0].word == "FROM"
    stages = [re.fullmatch(r"(\S+:\S+)(?: AS (\w+))?", text) for text in of("FROM")]
    assert len(stages) == 2 and all(stages), "one that installs, one that is the image"
    named = [stage[2] for stage in stages if stage is not None and stage[2]]
    taken = [re.match(r"--from=(\w+) ", text) for text in of("COPY", 1)]
    assert named == ["build"] and {found[1] for found in taken if found} == set(named)
    versions = {re.sub(r".*:(\d\.\d+)-.*", r"\1", text) for text in of("FROM")}
    assert versions == {"3.12"}, "what was installed for another Python is not found"


def test_files_that_are_copied_are_there_and_sent_to_the_builder() -> None:
    copied = {name for text in of("COPY", 0) for name in text.split()[:-1]}
    assert copied == {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "src", "conf"}
    assert all((ROOT / name).exists() for name in copied)
    rules = [line for line in IGNORES.read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*" and {rule[1:] for rule in rules if rule.startswith("!")} == copied


def test_nothing_secret_and_nobody_s_root() -> None:
    whole = RECIPE.read_text()
    assert not re.search(r"(api_key|token|password|secret)\s*=", whole, re.IGNORECASE) and "ARG" not in whole
    assert of("USER", 1) == ["llmrl"], "runs write into a mounted folder, not as root"


def test_what_it_installs_and_runs_exists() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    [step] = [text for text in of("RUN", 0) if "pip install" in text]
    [extras] = re.findall(r"'\.\[([\w,-]+)\]'", step)
    assert all(re.search(rf"^{re.escape(extra)} = \[", project, re.MULTILINE) for extra in extras.split(","))
    scripts = set(re.findall(r"^(llmrl-[\w-]+) = ", project, re.MULTILINE))
    assert set(re.findall(r"llmrl-[a-z-]+", step + of("CMD")[0])) <= scripts
    for line in re.findall(r"llmrl-train ([^;]+);", step):
        from llmrl.experiment.experiment import Experiment

        assert Experiment.compose(*shlex.split(line)).config["dry_run"]


def test_the_readme_has_the_commands_of_the_recipe() -> None:
    """Who reads either can copy what is there."""
    told = re.findall(r"^#   (podman .*)$", RECIPE.read_text(), re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    assert len(told) == 2 and all(line in readme for line in told)
    clusters = (ROOT / "docs" / "clusters.md").read_text()
    assert "podman build -t llmrl ." in clusters and "scripts/slurm/Dockerfile" not in clusters
    run = shlex.split(told[1])
    from llmrl.experiment.experiment import Experiment

    Experiment.compose(*run[run.index("llmrl-train") + 1 :])


def test_apptainer_s_recipe_does_the_same() -> None:
    other = (ROOT / "scripts" / "slurm" / "llmrl.def").read_text()
    [step] = [text for text in of("RUN", 0) if "pip install" in text]
    for command in (part.strip() for part in step.split(";")):
        if command.startswith(("pip install", "llmrl-")):
            assert command in other, command
    assert set(re.findall(r"^    (\S+) /opt/llmrl/\1$", other, re.MULTILINE)) == {
        name for text in of("COPY", 0) for name in text.split()[:-1]
    }


def builder() -> list[str]:
    """The first builder of this machine that works and has, or can have, the images that the recipe begins with."""
    for name in ("podman", "docker", "buildah"):
        if shutil.which(name) is None:
            continue
        if subprocess.run([name, "info"], capture_output=True, timeout=60).returncode:
            continue
        images = [text.split()[0] for text in of("FROM")]
        if all(
            subprocess.run([name, "pull", image], capture_output=True, timeout=600).returncode == 0 for image in images
        ):
            return [name]
    return []


@pytest.mark.long
@pytest.mark.slow
def test_it_can_be_built() -> None:
    found = builder()
    if not found:
        pytest.skip("neither podman, docker nor buildah works here and has the images that the recipe begins with")
    made = subprocess.run(
        [*found, "build", "-f", str(RECIPE), "-t", "llmrl-test", str(ROOT)],
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr[-4000:]
    if found != ["buildah"]:
        said = subprocess.run([*found, "run", "--rm", "llmrl-test"], capture_output=True, text=True, timeout=300)
        assert said.returncode == 0 and "llmrl-train composes an experiment" in said.stdout
