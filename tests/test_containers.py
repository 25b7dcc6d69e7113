"""The container recipe: built where a builder is at hand; its stages, files and commands are looked at anywhere."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
    parsed: list[Instruction] = []
    for line in filter(None, re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()):
        word, _, text = line.partition(" ")
        stage = (parsed[-1].stage if parsed else -1) + (word == "FROM")
        parsed.append(Instruction(word, text.strip(), stage))
    return parsed


def instruction_texts(word: str, stage: int | None = None) -> list[str]:
    return [
        instruction.text
        for instruction in instructions()
        if instruction.word == word and stage in (None, instruction.stage)
    ]


def test_instructions_parse_and_stages_chain() -> None:
    keywords = {"FROM", "ENV", "COPY", "RUN", "USER", "WORKDIR", "CMD"}
    assert {instruction.word for instruction in instructions()} <= keywords and instructions()[0].word == "FROM"
    stages = [re.fullmatch(r"(\S+:\S+)(?: AS (\w+))?", text) for text in instruction_texts("FROM")]
    assert len(stages) == 2 and all(stages), "one that installs, one that is the image"
    stage_names = [stage[2] for stage in stages if stage is not None and stage[2]]
    matches = [re.match(r"--from=(\w+) ", text) for text in instruction_texts("COPY", 1)]
    assert stage_names == ["build"] and {match[1] for match in matches if match} == set(stage_names)
    versions = {re.sub(r".*:(\d\.\d+)-.*", r"\1", text) for text in instruction_texts("FROM")}
    assert versions == {"3.12"}, "what was installed for another Python is not found"


def test_copy_sources_exist_in_build_context() -> None:
    copied = {name for text in instruction_texts("COPY", 0) for name in text.split()[:-1]}
    assert copied == {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "src", "conf"}
    assert all((ROOT / name).exists() for name in copied)
    rules = [line for line in IGNORES.read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*" and {rule[1:] for rule in rules if rule.startswith("!")} == copied


def test_image_has_no_secrets_or_root() -> None:
    recipe = RECIPE.read_text()
    assert not re.search(r"(api_key|token|password|secret)\s*=", recipe, re.IGNORECASE) and "ARG" not in recipe
    assert instruction_texts("USER", 1) == ["llmrl"], "runs write into a mounted folder, not as root"


def test_install_and_run_targets_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    [step] = [text for text in instruction_texts("RUN", 0) if "pip install" in text]
    [extras] = re.findall(r"'\.\[([\w,-]+)\]'", step)
    assert all(re.search(rf"^{re.escape(extra)} = \[", project, re.MULTILINE) for extra in extras.split(","))
    scripts = set(re.findall(r"^(llmrl-[\w-]+) = ", project, re.MULTILINE))
    assert set(re.findall(r"llmrl-[a-z-]+", step + instruction_texts("CMD")[0])) <= scripts
    for line in re.findall(r"llmrl-train ([^;]+);", step):
        from llmrl.experiment.experiment import Experiment

        assert Experiment.compose(*shlex.split(line)).config["dry_run"]


def test_readme_contains_recipe_commands() -> None:
    """Readers of the README or of the recipe can copy its commands."""
    commands = re.findall(r"^#   (podman .*)$", RECIPE.read_text(), re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    assert len(commands) == 2 and all(line in readme for line in commands)
    clusters = (ROOT / "docs" / "clusters.md").read_text()
    assert "podman build -t llmrl ." in clusters and "scripts/slurm/Dockerfile" not in clusters
    run = shlex.split(commands[1])
    from llmrl.experiment.experiment import Experiment

    Experiment.compose(*run[run.index("llmrl-train") + 1 :])


def test_apptainer_recipe_matches_containerfile() -> None:
    definition = (ROOT / "scripts" / "slurm" / "llmrl.def").read_text()
    [step] = [text for text in instruction_texts("RUN", 0) if "pip install" in text]
    for command in (part.strip() for part in step.split(";")):
        if command.startswith(("pip install", "llmrl-")):
            assert command in definition, command
    assert set(re.findall(r"^    (\S+) /opt/llmrl/\1$", definition, re.MULTILINE)) == {
        name for text in instruction_texts("COPY", 0) for name in text.split()[:-1]
    }


def builder() -> list[str]:
    """Return the first builder of this machine that works.

    It has, or can have, the images that the recipe begins with.
    """
    for name in ("podman", "docker", "buildah"):
        if shutil.which(name) is None:
            continue
        if subprocess.run([name, "info"], capture_output=True, timeout=60).returncode:
            continue
        images = [text.split()[0] for text in instruction_texts("FROM")]
        if all(
            subprocess.run([name, "pull", image], capture_output=True, timeout=600).returncode == 0 for image in images
        ):
            return [name]
    return []


@pytest.mark.long
@pytest.mark.slow
def test_image_builds() -> None:
    command = builder()
    if not command:
        pytest.skip("neither podman, docker nor buildah works here and has the images that the recipe begins with")
    build = subprocess.run(
        [*command, "build", "-f", str(RECIPE), "-t", "llmrl-test", str(ROOT)],
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert build.returncode == 0, build.stdout[-4000:] + build.stderr[-4000:]
    if command != ["buildah"]:
        run = subprocess.run([*command, "run", "--rm", "llmrl-test"], capture_output=True, text=True, timeout=300)
        assert run.returncode == 0 and "llmrl-train" in run.stdout


def pip_folders() -> set[Path]:
    """Return local folders that the pip configuration of this machine names, e.g. mirrors; the tree needs them, too."""
    config = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    texts = [config.stdout, *(value for name, value in os.environ.items() if name.startswith("PIP_"))]
    paths = (Path(path) for text in texts for path in re.findall(r"(?:file://)?(/[\w./-]+)", text))
    return {path for path in paths if path.is_dir()}


@pytest.fixture
def debian_tree() -> Iterator[Path]:
    """Yield a fresh Debian tree with Python, in which names of hosts and certificates are those of this machine."""
    memory = Path("/dev/shm")  # far faster than a disk for the many small files of an installation
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > 12 * 2**30
    tree = Path(tempfile.mkdtemp(prefix="llmrl-debian-", dir=memory if has_room else "/var/tmp"))
    tree.chmod(0o755)  # for users other than root
    mounted: list[Path] = []
    try:
        include = "ca-certificates,python3-venv,python3-dev,passwd"
        subprocess.run(["debootstrap", "--variant=minbase", f"--include={include}", "bookworm", tree], check=True)
        (tree / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        for name in ("resolv.conf", "hosts", "ssl/certs/ca-certificates.crt", "pip.conf"):
            if (Path("/etc") / name).is_file():
                shutil.copyfile(Path("/etc") / name, tree / "etc" / name)
        for folder in (Path("/proc"), Path("/dev/shm"), *pip_folders()):
            target = tree / folder.relative_to("/")
            target.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--bind", folder, target], check=True)
            mounted.append(target)
        yield tree
    finally:
        for target in reversed(mounted):
            subprocess.run(["umount", "--lazy", target], check=True)
        shutil.rmtree(tree)


@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="needs root and the Debian package debootstrap"
)
def test_recipe_and_demo_run_in_fresh_debian_tree(debian_tree: Path) -> None:
    """Debian's Python takes the place of that of the base image, whose registry a test cannot rely on."""
    variables = dict(pair.split("=", 1) for text in instruction_texts("ENV") for pair in text.split())
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    path = "/opt/venv/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    def run(command: str) -> None:
        finished = subprocess.run(
            ["chroot", debian_tree, "/bin/bash", "-c", command],
            env={**settings, **variables, "PATH": path, "HOME": "/root"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            umask=0o022,  # commands in earlier tests of this process may have changed it
        )
        assert finished.returncode == 0, finished.stdout[-4000:]

    for instruction in instructions():
        if instruction.word == "COPY" and not instruction.text.startswith("--from"):
            *sources, target = instruction.text.split()
            for name in sources:
                destination = debian_tree / target.strip("/") / (name if target.endswith("/") else "")
                if (ROOT / name).is_dir():
                    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                    shutil.copytree(ROOT / name, destination, symlinks=True, ignore=ignored)
                else:
                    destination.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(ROOT / name, destination)
        elif instruction.word == "RUN":
            run(instruction.text)
    makefile = (ROOT / "Makefile").read_text()
    [recipe] = re.findall(r"^demo:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    commands = [line.strip().replace("$(BIN)/", "") for line in recipe.splitlines()]
    user = instruction_texts("USER", 1)[0]
    work = instruction_texts("WORKDIR", 1)[0]
    run(f"mkdir -p {work} && chown {user} {work}")
    for command in commands:
        run(f"cd {work} && su {user} -c {shlex.quote(f'PATH=/opt/venv/bin:$PATH; {command}')}")
    assert list(debian_tree.glob(f"{work.strip('/')}/outputs/demo/**/side_by_side.gif"))
