"""The built wheel carries configs and prompts, and works in an environment of its own from any working directory."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import llmrl.conf
from cluster import NoClusterError, start_cluster

ROOT = Path(__file__).parents[1]
MAKE_BY_ID = "import gymnasium; gymnasium.make('llmrl.gym:llmrl/Maze-v0').reset(seed=0)"
"""A program that makes an environment of the package without an import of the package."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_wheel_includes_configs_prompts(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert Path(llmrl.conf.__file__).resolve().parent == ROOT / "conf"
    files = [path for path in (ROOT / "conf").rglob("*") if path.suffix in (".yaml", ".json")]
    configs = {f"llmrl/conf/{path.relative_to(ROOT / 'conf').as_posix()}" for path in files}
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "llmrl").rglob("*")
        if path.suffix in (".py", ".j2", ".json", ".lua") or path.name == "py.typed"
    }
    assert len(configs) > 20 and not (configs | sources) - packed


@pytest.mark.long
@pytest.mark.slow
def test_wheel_works_in_fresh_environment(wheel, tmp_path):
    """Dependencies are taken from this environment through a path file, llmrl itself only from the wheel."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True)
    script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    purelib = Path(subprocess.run([python, "-c", script], check=True, capture_output=True, text=True).stdout.strip())
    (purelib / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    cwd = tmp_path / "somewhere" / "else"
    cwd.mkdir(parents=True)
    origin = subprocess.run(
        [python, "-c", "import llmrl, llmrl.conf; print(llmrl.__file__, llmrl.conf.__file__)"],
        cwd=cwd, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert origin.count(str(purelib)) == 2
    subprocess.run([python, "-c", MAKE_BY_ID], cwd=cwd, check=True)
    overrides = ["env=escape_room", "principal=llm", "env.n_envs=2", "design.steps=1", "design.adapt_rounds=1"]
    overrides += ["design.references=0"]
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "llmrl-train", *overrides, "design.validate_episodes=2"],
        cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(cwd.rglob("summary.json"))
    for hardware in ("cpu", *(["slurm_cpu"] if is_slurm_running() else [])):
        command = [tmp_path / "env" / "bin" / "llmrl-train", "--multirun", *overrides, "design.validate_episodes=2"]
        done = subprocess.run(
            [*command, f"hardware={hardware}", "hardware.memory_gb=1", "principal=ucb,llm", f"name={hardware}"],
            cwd=cwd, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0 and "2 finished" in done.stdout, done.stdout + done.stderr
        for record in (cwd / "outputs" / hardware).rglob("provenance.json"):
            # Not the checkout's code: a wheel has no revision.
            assert json.loads(record.read_text())["attempts"][0]["code"] is None


@pytest.mark.long
@pytest.mark.slow
def test_editable_install_coexists_with_clone(tmp_path):
    """`git clone <repository> llmrl`: in the folder of that command, `llmrl` is also the name of a folder."""
    clone = tmp_path / "llmrl"
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, clone / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("*"):
        if path.name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
            shutil.copy(path, clone)
    venv.create(tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "env" / "lib" / version / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    install += ["--no-build-isolation", "--editable", clone]
    done = subprocess.run(install, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    program = "import llmrl, llmrl.conf; llmrl.make_env; print(llmrl.__file__, llmrl.conf.__file__)"
    for cwd in (tmp_path, clone, clone / "src"):
        completed = subprocess.run(
            [python, "-c", program], cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, f"in {cwd}: {completed.stderr}"
        package, conf = (Path(word).resolve() for word in completed.stdout.split())
        assert package == clone / "src" / "llmrl" / "__init__.py" and conf == clone / "conf" / "__init__.py"
        subprocess.run([python, "-c", MAKE_BY_ID], cwd=cwd, env=environment, check=True)


@pytest.mark.slow
def test_uv_environment_installs_packages_with_uv(tmp_path):
    """It has no pip. The engine itself is 90 MB, so a small one of its requirements stands for it."""
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if uv is None:
        pytest.skip("uv is of the extra dev")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    program = (
        "from llmrl.envs.substrate.install import _run_pip_install; "
        "_run_pip_install(['immutabledict'], None); import immutabledict"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "UV": uv}
    done = subprocess.run([python, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    environment |= {"PATH": str(tmp_path)}
    del environment["UV"]
    done = subprocess.run([python, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert "no pip" in done.stderr and "no uv" in done.stderr


def is_slurm_running() -> bool:
    try:
        start_cluster()
    except NoClusterError:
        return False
    return True
