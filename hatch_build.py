"""The hook that compiles the hot path (mypyc) into a wheel, or beside its sources for an editable install.

``TANDEMMQ_COMPILE=1 pip install .`` asks for it; it needs a C compiler and Python's headers and takes minutes. Without
it the wheel is plain Python and runs anywhere. The modules stand in pyproject.toml; they become one library, so that
a call from one to the other is a call in C. Each is a unit of the C compiler: one unit of all takes twice the time and
is no faster. Beside them are modules in C (``native``), which Python does without.
``TANDEMMQ_COMPILE_CACHE`` names a directory that keeps what was compiled, by the sources, the Python and the compiler
it was made from.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WISH = "TANDEMMQ_COMPILE"
CACHE = "TANDEMMQ_COMPILE_CACHE"
COMPILER = ("mypy[mypyc]==2.4.1", "setuptools>=68")
#: The library with the code of all modules; beside each module is a small one that hands over to it.
GROUP = "tandemmq.compiled"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# What third parties' types are must not depend on what is installed beside the compiler.
SETTINGS = """\
[mypy]
strict = True
namespace_packages = False
disallow_subclassing_any = False
disallow_untyped_decorators = False
disallow_any_generics = False
warn_unused_ignores = False
warn_return_any = False
warn_redundant_casts = False
ignore_missing_imports = True
[mypy-{}]
follow_imports = skip
follow_imports_for_stubs = True
"""
THIRD_PARTIES = (
    "aiohttp", "click", "crcmod", "kazoo", "lark", "ldap3", "portalocker", "prometheus_client", "pydantic", "rich",
    "sortedcontainers", "sqlalchemy", "stomp", "uvloop",
)  # fmt: skip


class CompileHook(BuildHookInterface[Any]):
    """Does nothing unless TANDEMMQ_COMPILE is 1."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return list(COMPILER) if self._is_wanted else []

    @property
    def _is_wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get(WISH) == "1"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if not self._is_wanted:
            return
        root = Path(self.root)
        kept = os.environ.get(CACHE)
        # It goes when the build ends: the wheel is written after this has returned.
        self._made = None if kept else tempfile.TemporaryDirectory(prefix="tandemmq-compiled-")
        made = compiled(root, self.config["modules"], self.config["native"], Path(kept or self._made.name))
        if version == "editable":
            for name, library in made.items():
                shutil.copyfile(library, root / name)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for name, library in made.items():
            build_data["force_include"][str(library)] = name


def compiled(root: Path, modules: Sequence[str], native: Sequence[str], into: Path) -> dict[str, Path]:
    """The libraries of ``modules`` (files below ``tandemmq/``) and of ``native`` ones, by their paths below ``root``;
    made unless they are there."""
    target = into / _key(root, modules, native)
    names = [f"tandemmq/{module.rpartition('.')[0]}{SUFFIX}" for module in (*modules, *native)]
    names.append(f"{GROUP.replace('.', '/')}__mypyc{SUFFIX}")
    made = {name: target / name for name in names}
    if not all(library.is_file() for library in made.values()):
        with tempfile.TemporaryDirectory(prefix="tandemmq-compile-") as work:
            _compile(root, modules, native, target, Path(work))
    return made


def _packages(root: Path) -> list[Path]:
    """The directories that are packages of ``tandemmq``."""
    return sorted(each.parent for each in root.glob("*/__init__.py") if each.parent.name not in ("tandemmq", "tests"))


def _key(root: Path, modules: Sequence[str], native: Sequence[str]) -> str:
    """Of everything that is compiled, or read for its types."""
    digest = hashlib.sha256(repr((sys.version, SUFFIX, COMPILER, SETTINGS, tuple(modules))).encode())
    sources = [
        *(root / name for name in native),
        *(root / "tandemmq").glob("*.py"),
        *(path for each in _packages(root) for path in each.rglob("*.py")),
    ]
    for path in sorted(sources):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _compile(root: Path, modules: Sequence[str], native: Sequence[str], target: Path, work: Path) -> None:
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension

    settings = work / "mypy.ini"
    settings.write_text(SETTINGS.format(",mypy-".join(f"{name}.*" for name in THIRD_PARTIES)))
    # One tree with all packages below tandemmq/, wherever they come from: modules are named by their paths in it.
    package = work / "tree" / "tandemmq"
    package.mkdir(parents=True)
    for path in [*(root / "tandemmq").glob("*.py"), *_packages(root)]:
        (package / path.name).symlink_to(path)
    there = os.getcwd()
    os.chdir(package.parent)
    try:
        extensions = mypycify(
            ["--config-file", str(settings), *(f"tandemmq/{module}" for module in modules)],
            opt_level="2",
            debug_level="0",
            target_dir=str(work / "c"),
            group_name=GROUP,
            multi_file=True,
        )
        for extension in extensions:
            extension.include_dirs += [str(work / "c"), str(work / "c" / "tandemmq")]
            extension.extra_compile_args.append("-fvisibility=hidden")  # else each of these calls looks its target up
        extensions += [
            Extension(f"tandemmq.{name.removesuffix('.c').replace('/', '.')}", [f"tandemmq/{name}"]) for name in native
        ]
        distribution = Distribution({"name": "tandemmq", "ext_modules": extensions})
        command = distribution.get_command_obj("build_ext")
        command.build_lib = str(target)
        command.build_temp = str(work / "objects")
        distribution.run_command("build_ext")
    finally:
        os.chdir(there)
