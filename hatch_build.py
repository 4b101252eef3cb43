"""Build hook that compiles the hot path with mypyc, into a wheel, or beside its sources for an editable install.

``TANDEMMQ_COMPILE``
    ``0``  the wheel is plain Python.
    ``1``  the wheel is compiled, or the build fails.
    unset  the wheel is compiled if that is possible here; an editable install is plain Python. A wheel of plain Python
           has a file with the reason (``REASON``), which tandemmq.compiled reads.

Compiling requires a C compiler and Python's headers. pyproject.toml lists the modules. They become one library, so a
call between two modules is a call in C. Each module is compiled separately, with as many compilers as there are cores.
The modules in C (``native``) are optional: without them, Python code does the same.
``TANDEMMQ_COMPILE_CACHE`` names a directory that keeps the libraries, by their sources, Python version and compiler.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WISH = "TANDEMMQ_COMPILE"
CACHE = "TANDEMMQ_COMPILE_CACHE"
COMPILER = ("mypy[mypyc]==2.4.1", "setuptools>=68")
#: The library with the code of all modules. Each module also has a small library, which calls this one.
GROUP = "tandemmq.compiled"
#: setuptools reads the same variable, which .ci/wheels.py sets to build for another machine.
SUFFIX = os.environ.get("SETUPTOOLS_EXT_SUFFIX") or sysconfig.get_config_var("EXT_SUFFIX")
#: File in a wheel of plain Python: one line with the reason.
REASON = "tandemmq/plain.txt"
# The types of other libraries must not depend on which of them are installed with the compiler.
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
    """Compiles all modules, or none."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if self.target_name != "wheel" or self._reason() else list(COMPILER)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        is_editable = version == "editable"
        # Removed when the build process ends, because the wheel is written after this method returns.
        self._made = tempfile.TemporaryDirectory(prefix="tandemmq-compiled-")
        made: dict[str, Path] = {}
        reason = "an editable install" if is_editable and os.environ.get(WISH) != "1" else self._reason()
        if not reason:
            into = Path(os.environ.get(CACHE) or self._made.name)
            try:
                made = compiled(Path(self.root), self.config["modules"], self.config["native"], into)
            except (Exception, SystemExit) as error:  # any error of mypyc, setuptools or the compiler
                if os.environ.get(WISH) == "1":
                    raise
                reason = f"compiling failed: {' '.join(str(error).split())[:200]}"
        if is_editable:
            for name, library in made.items():
                shutil.copyfile(library, Path(self.root, name))
            return
        if reason:
            self.app.display_warning(f"TandemMQ is plain Python: {reason}")
            made = {REASON: Path(self._made.name, "plain.txt")}
            made[REASON].write_text(f"{reason}\n")
        else:
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
        for name, file in made.items():
            build_data["force_include"][str(file)] = name

    def _reason(self) -> str:
        """Return why nothing is compiled here, or "" if it is compiled. Raises RuntimeError if it must be compiled and
        cannot be."""
        wish = os.environ.get(WISH)
        reason = f"{WISH} was 0" if wish == "0" else missing()
        if reason and wish == "1":
            raise RuntimeError(f"{WISH} is 1, and there is {reason}")
        return reason


def missing() -> str:
    """Return what is missing here for compiling, or "" if nothing is. Compiles a short module in C to find out."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory(prefix="tandemmq-compile-") as work:
        source = Path(work, "probe.c")
        command = [*compiler, "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", str(source)]
        for what, text in (("C compiler", "#include <stdlib.h>"), ("Python.h", "#include <Python.h>")):
            source.write_text(f"{text}\nint probe;\n")
            try:
                done = subprocess.run([*command, "-o", f"{work}/probe.so"], capture_output=True, check=False)
            except OSError:
                return f"no C compiler ({compiler[0]})"
            if done.returncode != 0:
                return f"no {what} that works ({compiler[0]})" if what == "C compiler" else f"no {what}"
    return ""


def compiled(root: Path, modules: Sequence[str], native: Sequence[str], into: Path) -> dict[str, Path]:
    """Return the libraries of ``modules`` (files below ``tandemmq/``) and of ``native`` ones, by their paths below
    ``root``. Compile them unless ``into`` has them."""
    target = into / _key(root, modules, native)
    names = [f"tandemmq/{module.rpartition('.')[0]}{SUFFIX}" for module in (*modules, *native)]
    names.append(f"{GROUP.replace('.', '/')}__mypyc{SUFFIX}")
    made = {name: target / name for name in names}
    if not all(library.is_file() for library in made.values()):
        with tempfile.TemporaryDirectory(prefix="tandemmq-compile-") as work:
            _compile(root, modules, native, target, Path(work))
    return made


def _packages(root: Path) -> list[Path]:
    """Return the directories that are packages of ``tandemmq``."""
    return sorted(each.parent for each in root.glob("*/__init__.py") if each.parent.name not in ("tandemmq", "tests"))


def _key(root: Path, modules: Sequence[str], native: Sequence[str]) -> str:
    """Return a checksum of all files that are compiled or read for their types, and of the settings."""
    compiler = [os.environ.get(name) for name in ("CC", "CFLAGS", "CPPFLAGS", "LDSHARED", "LDFLAGS")]
    digest = hashlib.sha256(repr((sys.version, SUFFIX, COMPILER, compiler, tuple(modules))).encode())
    digest.update(Path(__file__).read_bytes())
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
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import CCompilerError, ExecError

    class Parallel(build_ext):
        """Compiles the files of an extension in parallel."""

        def build_extensions(self) -> None:
            one_by_one = self.compiler.compile

            def side_by_side(sources: Sequence[str], **options: Any) -> list[str]:
                pool = ThreadPoolExecutor(os.cpu_count())
                try:
                    made = pool.map(lambda source: one_by_one([source], **options), sources)
                    return [file for files in made for file in files]
                finally:
                    pool.shutdown(cancel_futures=True)  # after a failure, cancel files that have not begun

            self.compiler.compile = side_by_side
            first = self.extensions[0]
            paths = [f"-I{each}" for each in (*first.include_dirs, *self.compiler.include_dirs)]
            command = [*self.compiler.compiler_so, *paths, *first.extra_compile_args]
            try:
                self.compiler.spawn([*command, "-x", "c-header", str(header), "-o", f"{header}.gch"])
                self.compiler.spawn([*command, "-c", str(probe), "-o", f"{probe}.o"])
            except (CCompilerError, ExecError):
                # This compiler cannot use it, so each file reads the header itself.
                Path(f"{header}.gch").unlink(missing_ok=True)
            super().build_extensions()

    header, probe = work / "all.h", work / "probe.c"
    probe.touch()
    # Without hidden visibility, each call between modules looks up its target.
    options = ["-fvisibility=hidden", "-include", str(header)]
    header.write_text('#include "__native_compiled.h"\n#include "__native_internal_compiled.h"\n')
    settings = work / "mypy.ini"
    settings.write_text(SETTINGS.format(",mypy-".join(f"{name}.*" for name in THIRD_PARTIES)))
    # One tree with all packages below tandemmq/, because the path in this tree gives a module its name.
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
        paths = [*extensions[0].include_dirs, str(work / "c"), str(work / "c" / "tandemmq")]
        for extension in extensions:
            extension.include_dirs = paths
            # The list is shared by all extensions, so it is replaced, not changed.
            extension.extra_compile_args = [*extension.extra_compile_args, *options]
        extensions += [
            Extension(f"tandemmq.{name.removesuffix('.c').replace('/', '.')}", [f"tandemmq/{name}"]) for name in native
        ]
        distribution = Distribution(
            {"name": "tandemmq", "ext_modules": extensions, "cmdclass": {"build_ext": Parallel}}
        )
        command = distribution.get_command_obj("build_ext")
        command.build_lib = str(target)
        command.build_temp = str(work / "objects")
        command.parallel = os.cpu_count()  # the small libraries, beside the files of the large one
        distribution.run_command("build_ext")
    finally:
        os.chdir(there)
