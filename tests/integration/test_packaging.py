"""The facts are found from a clone, an editable install and a wheel, and the core stays light."""

import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import quantlab
from quantlab.matrix.data import data_folder

ROOT = Path(__file__).resolve().parents[2]
KNOWN_GOOD = ROOT / "matrix" / "environments" / "known-good.txt"


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def clean_environment(**extra):
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "QUANTLAB"))}
    return {**kept, **extra}


def test_an_editable_install_finds_the_data_beside_the_package():
    where = run(sys.executable, "-c", "from quantlab.matrix.data import data_folder; print(data_folder())", cwd="/")
    assert Path(where.strip()) == ROOT / "matrix" == data_folder()


def test_a_clone_finds_its_own_data(tmp_path):
    clone = tmp_path / "clone"
    for part in ("quantlab", "matrix"):
        shutil.copytree(ROOT / part, clone / part, ignore=shutil.ignore_patterns("__pycache__"))
    code = "import quantlab.matrix.data as d; print(d.__file__, d.data_folder())"
    file, folder = run(sys.executable, "-c", code, cwd=clone, env=clean_environment(PYTHONPATH=str(clone))).split()
    assert file.startswith(str(clone))
    assert Path(folder) == clone / "matrix"


@pytest.fixture(scope="module")
def installed_wheel(tmp_path_factory):
    """An environment that holds the wheel and its base dependencies, nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", cwd=ROOT)
    wheel = next((folder / "dist").glob("quantlab-*.whl"))
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--constraint", KNOWN_GOOD, wheel, env=clean_environment())
    return python


def test_a_wheel_in_an_empty_environment_answers_without_torch(installed_wheel, tmp_path):
    environment = clean_environment(XDG_CACHE_HOME=str(tmp_path))
    assert "torch" not in run(installed_wheel, "-m", "pip", "list", "--format", "freeze", env=environment).lower()
    code = "from quantlab.matrix.data import data_folder; print(data_folder())"
    where = Path(run(installed_wheel, "-c", code, cwd=tmp_path, env=environment).strip())
    assert where.parts[-2:] == ("quantlab", "_matrix")
    quantlab_command = installed_wheel.parent / "quantlab"
    table = run(quantlab_command, "matrix", "--backend", "rocm", cwd=tmp_path, env=environment)
    assert "gfx942" in table
    answer = subprocess.run(
        [quantlab_command, "check", "fp8", "--gpu", "MI300X", "--engine", "vllm", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert answer.returncode in (0, 1), answer.stderr
    assert json.loads(answer.stdout)["sources"]


def test_importing_quantlab_imports_nothing_heavy():
    heavy = ("torch", "pydantic", "yaml", "rich", "huggingface_hub", "numpy", "transformers")
    code = f"import quantlab, sys; print([m for m in {heavy!r} if m in sys.modules])"
    assert run(sys.executable, "-c", code).strip() == "[]"


def test_the_light_parts_import_no_torch():
    names = [
        module.name
        for package in ("matrix", "hardware", "checkpoint", "cli")
        for module in pkgutil.walk_packages([str(ROOT / "quantlab" / package)], f"quantlab.{package}.")
    ]
    code = f"import importlib, sys\nfor n in {names!r}: importlib.import_module(n)\nprint('torch' in sys.modules)"
    assert run(sys.executable, "-c", code).strip() == "False"


def test_no_submodule_hides_a_public_function():
    for module in pkgutil.walk_packages(quantlab.__path__, "quantlab."):
        if not module.name.endswith("__main__") and ".worker.child" not in module.name:
            importlib.import_module(module.name)
    for name in quantlab.__all__:
        assert callable(getattr(quantlab, name)) or name == "__version__", name
