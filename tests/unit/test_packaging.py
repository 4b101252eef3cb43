"""The installed package: the wheel, built from the sdist, in a separate environment."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from build import ProjectBuilder

from tests.support.prove import IS_FULL
from tests.support.tree import DIRECTORIES
from tests.support.tree import ROOT as TREE

pytestmark = pytest.mark.thorough  # a wheel is built, and installed into separate environments

#: What stands in the package itself, beside its links to the directories.
ON_TOP = {f"tandemmq/{path.name}" for path in (TREE / "tandemmq").iterdir() if path.is_file()} | {"tandemmq/plain.txt"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as a packager makes it: the tree to an sdist, the sdist to a wheel."""
    dist = tmp_path_factory.mktemp("dist")
    result = build(dist, TANDEMMQ_COMPILE="0")
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(list(dist.glob("*.tar.gz"))) == 1
    return next(dist.glob("*.whl"))


def build(dist: Path, *options: str, tree: Path = TREE, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TANDEMMQ_COMPILE")}
    return subprocess.run(
        [*command, "--outdir", str(dist), str(tree)],
        env=environment | variables, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False,
    )  # fmt: skip


#: All modules, on a busy machine.
BUILD_SECONDS_MAX = 1800 if IS_FULL else 300
#: A C compiler that compiles two modules, but not a third one.
ENDS_MIDWAY = """\
#!/bin/sh
case "$*" in *store___histogram.c*) echo "no space left" >&2; exit 1 ;; esac
exec {} "$@"
"""


#: C compilers that make no precompiled header, or cannot use it.
WITHOUT_HEADERS = {
    "it makes none": """\
#!/bin/sh
case "$*" in *c-header*) echo "no such language" >&2; exit 1 ;; esac
exec {} "$@"
""",
    "it cannot use it": """\
#!/bin/sh
case "$*" in *c-header*) ;; *"-include "*)
    for each; do [ -e "$each.gch" ] && echo "another version made it" >&2 && exit 1; done ;;
esac
exec {} "$@"
""",
}


def few_modules(place: Path) -> Path:
    """The tree, of which three modules are to be compiled."""
    place.mkdir()
    for path in TREE.iterdir():
        if path.name not in ("pyproject.toml", ".git"):
            (place / path.name).symlink_to(path)
    modules = re.compile(r"^modules = \[\n.*?^\]", re.DOTALL | re.MULTILINE)
    few = 'modules = ["journal/format.py", "store/histogram.py", "store/records/utf.py"]'
    text, count = modules.subn(few, (TREE / "pyproject.toml").read_text())
    assert count == 1
    (place / "pyproject.toml").write_text(text)
    return place


@pytest.mark.parametrize(
    ("wish", "compiler", "reason"),
    [
        ("0", "cc", "TANDEMMQ_COMPILE was 0"),
        ("", "/nowhere/cc", "no C compiler (/nowhere/cc)"),
        ("", "false", "no C compiler that works (false)"),
        ("", "cc -nostdinc -ffreestanding", "no C compiler that works (cc)"),
        ("", "midway", "compiling failed: "),
        ("1", "/nowhere/cc", None),
    ],
)
def test_a_build_without_a_compiler_is_plain_python_with_the_reason(
    tmp_path: Path, wish: str, compiler: str, reason: str | None
) -> None:
    """None: it was to be compiled, so the build fails."""
    real = shutil.which("cc") or shutil.which("gcc")
    if compiler == "midway":
        if real is None:
            pytest.skip("no C compiler")
        (tmp_path / "cc").write_text(ENDS_MIDWAY.format(real))
        (tmp_path / "cc").chmod(0o755)
        compiler = str(tmp_path / "cc")
    tree = few_modules(tmp_path / "tree")
    result = build(tmp_path, "--wheel", tree=tree, TANDEMMQ_COMPILE=wish, CC=compiler)
    assert (result.returncode == 0) is (reason is not None), result.stdout + result.stderr
    if reason is None:
        assert not list(tmp_path.glob("*.whl"))
        return
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]
        said = archive.read("tandemmq/plain.txt").decode()
    assert said.startswith(reason)
    assert said.count("\n") == 1


@pytest.mark.timeout(BUILD_SECONDS_MAX)
@pytest.mark.parametrize("script", WITHOUT_HEADERS.values(), ids=WITHOUT_HEADERS)
def test_a_compiler_without_precompiled_headers_makes_a_compiled_wheel(
    tmp_path: Path, outside: dict[str, str], script: str
) -> None:
    real = shutil.which("cc") or shutil.which("gcc")
    if real is None:
        pytest.skip("no C compiler")
    compiler = tmp_path / "cc"
    compiler.write_text(script.format(real))
    compiler.chmod(0o755)
    tree = few_modules(tmp_path / "tree")
    result = build(tmp_path, "--wheel", tree=tree, TANDEMMQ_COMPILE="1", CC=str(compiler))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.prove
@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_the_compiler_of_the_system_makes_a_compiled_wheel(
    tmp_path: Path, outside: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The build is that of `pip install .`. In CI it compiles three modules, and zig all of them (.ci/wheels.py); in a
    proof all."""
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler")
    tree = TREE if IS_FULL else few_modules(tmp_path / "tree")
    monkeypatch.delenv("TANDEMMQ_COMPILE", raising=False)
    assert {"setuptools>=68"} < ProjectBuilder(tree).get_requires_for_build("wheel"), "pip installs mypyc for it"
    result = build(tmp_path, "--wheel", tree=tree)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "wheel")
    command = [sys.executable, "-m", "tandemmq", "--version"]
    said = subprocess.run(command, cwd=tmp_path / "wheel", env=outside, capture_output=True, text=True, check=False)
    assert said.stdout.endswith("(compiled)\n"), said.stdout + said.stderr


def modules_of(folder: Path) -> set[str]:
    return {str(path.relative_to(TREE)) for path in folder.rglob("*.py") if "__pycache__" not in path.parts}


def test_the_wheel_has_one_package_and_no_flat_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    modules = {f"tandemmq/{module}" for name in DIRECTORIES for module in modules_of(TREE / name)}
    shipped = ("tandemmq/bench/__init__.py", "tandemmq/bench/driver/")
    left_out = {name for name in modules if name.startswith("tandemmq/bench/") and not name.startswith(shipped)}
    assert left_out
    assert len(names) == len(set(names))
    assert {name for name in names if name.endswith(".py")} - ON_TOP == modules - left_out
    assert not [name for name in names if name.startswith("tandemmq/bench/") and not name.startswith(shipped)]
    assert "tandemmq/pipeline/log4j2.properties" in names
    static = {str(path.relative_to(TREE)) for path in (TREE / "broker" / "admin" / "console" / "static").iterdir()}
    assert {f"tandemmq/{name}" for name in static} <= set(names)
    assert all(name.startswith("tandemmq/") for name in names)
    assert {name for name in names if name.count("/") == 1} == ON_TOP


def test_the_sdist_has_the_tests_and_the_docs_but_no_data(wheel: Path) -> None:
    with tarfile.open(next(wheel.parent.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "docs/architecture.md", "tests/unit/test_packaging.py"} <= names
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
            is_ours = "tandemmq" in entry.name or entry.suffix == ".pth" or entry.name in DIRECTORIES
            if not is_ours and not (lent / entry.name).exists():
                (lent / entry.name).symlink_to(entry)
    site = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    (site / "lent.pth").write_text(f"{lent}\n")
    return home


@pytest.fixture
def outside() -> dict[str, str]:
    """Return an environment that does not contain the path of the tree, unlike that of the tests and of Spark's
    workers."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def test_modules_of_a_program_stay_its_own_beside_ours(
    installed: Path, tmp_path: Path, outside: dict[str, str]
) -> None:
    """A program that has a config.py, a store.py and a broker/ uses the client, and both work."""
    (tmp_path / "config.py").write_text("NAME = 'mine'\n")
    (tmp_path / "store.py").write_text("NAME = 'mine'\n")
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "__init__.py").write_text("NAME = 'mine'\n")
    imports = ["import config, store, broker", "from tandemmq.client import Client; import tandemmq.broker.run"]
    for first, second in (imports, imports[::-1]):
        program = tmp_path / "program.py"
        program.write_text(f"{first}\n{second}\nprint(config.NAME, store.NAME, broker.NAME, Client.__module__)\n")
        command = [installed / "bin" / "python", program]
        result = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert result.stdout == "mine mine mine tandemmq.client.client\n"


def test_mypy_of_a_program_sees_the_types_of_the_client(installed: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("from tandemmq.client import Client\n\nreveal_type(Client.send_confirmed)\n")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    mypy += ["--python-executable", str(installed / "bin" / "python"), str(program)]
    result = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110)
    assert result.returncode == 0, result.stdout
    assert "tandemmq.client.client.Client" in result.stdout


@pytest.mark.parametrize(
    "command", [["--help"], ["--version"], ["run", "--help"], ["status", "--help"], ["bench", "--help"]]
)
def test_the_command_of_an_installed_wheel_runs(
    installed: Path, tmp_path: Path, outside: dict[str, str], command: list[str]
) -> None:
    asked = [installed / "bin" / "tandemmq", *command]
    result = subprocess.run(asked, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "tandemmq" in result.stdout
    if command == ["--version"]:
        assert result.stdout.endswith("(plain Python: TANDEMMQ_COMPILE was 0)\n")
