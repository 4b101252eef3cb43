"""What people install: the wheel, built from the sdist, in an environment of its own."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

TREE = Path(__file__).parents[1]
ROOMS = ("broker", "store", "journal", "index", "locker", "config")
FRONT_DOOR = {
    f"tandemmq/{name}" for name in ("__init__.py", "__main__.py", "client.py", "disk.py", "modes.py", "py.typed")
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a packager makes it: the tree to an sdist, the sdist to a wheel."""
    dist = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]
    result = subprocess.run(
        [*build, "--outdir", str(dist), str(TREE)], capture_output=True, text=True, timeout=110, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(list(dist.glob("*.tar.gz"))) == 1
    return next(dist.glob("*.whl"))


def modules_of(folder: Path) -> set[str]:
    return {str(path.relative_to(TREE)) for path in folder.rglob("*.py") if "__pycache__" not in path.parts}


def test_the_wheel_has_the_rooms_under_app_and_the_front_door_alone_on_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    rooms = {f"tandemmq/_app/{module}" for room in ROOMS for module in modules_of(TREE / room)}
    assert rooms <= names
    assert "tandemmq/_app/broker/pipeline/log4j2.properties" in names
    assert {name for name in names if not name.startswith("tandemmq/_app/")} == FRONT_DOOR


def test_the_sdist_has_the_tests_and_the_docs_but_no_data(wheel: Path) -> None:
    with tarfile.open(next(wheel.parent.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "docs/architecture.md", "tests/test_packaging.py"} <= names
    assert not [name for name in names if name.endswith((".log", ".data", ".pyc")) or name.startswith("tandemmq-data")]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone; its dependencies are lent by the one the tests run in."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, timeout=110)

    # Not by a .pth file: the tree's own editable install would come along, and nothing would be shown.
    lent = tmp_path_factory.mktemp("lent")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    for origin in {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}:
        for entry in Path(origin).iterdir():
            is_ours = "tandemmq" in entry.name or entry.suffix == ".pth" or entry.name in ROOMS
            if not is_ours and not (lent / entry.name).exists():
                (lent / entry.name).symlink_to(entry)
    site = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    (site / "lent.pth").write_text(f"{lent}\n")
    return home


def test_an_installed_wheel_runs_its_own_rooms_from_any_directory(installed: Path, tmp_path: Path) -> None:
    script = "import tandemmq, broker, store, journal, index, locker, config; print(broker.__file__, store.__file__)"
    # A path that says where the tree is would be asked first: whoever runs from the tree has one, Spark's workers too.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [installed / "bin" / "python", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert all("tandemmq/_app/" in path for path in result.stdout.split())


@pytest.mark.parametrize("command", [["--help"], ["--version"], ["run", "--help"], ["status", "--help"]])
def test_the_command_of_an_installed_wheel_runs(installed: Path, tmp_path: Path, command: list[str]) -> None:
    result = subprocess.run(
        [installed / "bin" / "tandemmq", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "tandemmq" in result.stdout
