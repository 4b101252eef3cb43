"""An image of a source tree, built by its Dockerfile without pulling other images.

The base image is built with mmdebstrap from this machine's release and package mirror; the dependencies are wheels
that pip downloads. Both are built once and kept in TANDEMMQ_TEST_CACHE (default /var/tmp/tandemmq-test). The broker
comes from the tree, or from the wheel in the directory that TANDEMMQ_COMPILED_WHEEL names.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.tree import DIRECTORIES
from tests.support.tree import ROOT as TREE

CACHE = Path(os.environ.get("TANDEMMQ_TEST_CACHE", "/var/tmp/tandemmq-test"))
COMPILED_WHEEL = "TANDEMMQ_COMPILED_WHEEL"
CONTEXT = ("tandemmq", *DIRECTORIES, "pyproject.toml", "README.md")
CONTEXT_FILES = ("LICENSE", "hatch_build.py", "Dockerfile", ".dockerignore", "docker-compose.yml")
#: Packages of the base images: the plain one, and one that boots with systemd. JAVA: one that runs Spark.
PYTHON = ("python3", "python3-venv", "ca-certificates")
SYSTEMD = (*PYTHON, "systemd", "systemd-sysv", "dbus")
#: Files that Debian's slim images and python:slim do not have, either.
LEFT_OUT = (
    *(f"usr/share/{name}" for name in ("doc", "info", "lintian", "locale", "man")),
    *("var/cache/apt", "var/lib/apt/lists", "tmp"),
)
#: Packages for Spark and ZooKeeper.
JAVA = (*PYTHON, "default-jre-headless", "libzookeeper-java")
EXTRAS = ("postgres", "zookeeper")
BROKER = "tandemmq"
PIPELINE = "tandemmq-pipeline"

BUILD_SECONDS_MAX = 900.0


def run(*command: str, seconds: float = 300, env: Mapping[str, str] | None = None) -> str:
    """Return the output of a command. If it fails, the output is in the error."""
    result = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        env={**os.environ, **(env or {})},
        check=False,
    )
    assert result.returncode == 0, f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout[-4000:]}"
    return result.stdout


def no_docker() -> str | None:
    """Return why Docker cannot be used here; None if it can."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    if subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False).returncode != 0:
        return "no Docker daemon answers"
    if compose_command() is None:
        return "neither docker-compose nor the compose plug-in of docker is installed"
    if os.geteuid() != 0:
        return "mmdebstrap, which makes the base image, needs root"
    return None


def compose_command() -> list[str] | None:
    if shutil.which("docker-compose") is not None:
        return ["docker-compose"]
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    return None


def release() -> tuple[str, str, set[str]]:
    """Return codename, mirror and components of this machine's release, from its apt sources."""
    system = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if line.count("=") == 1
    )
    codename = system["VERSION_CODENAME"].strip('"')
    targets = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    mirror, components = None, set()
    for line in targets.splitlines():
        uri, name, component = line.split()
        if name == codename and mirror in (None, uri):
            mirror = uri
            components.add(component)
    assert mirror is not None, f"apt has no source for {codename}"
    return codename, mirror, components


def base_image(label: str = "base", packages: Sequence[str] = PYTHON) -> str:
    """Build an image with this machine's release and some packages, with the files of Debian's slim images. Return its
    name."""
    tar = base_tar(label, packages)
    name = f"tandemmq-test-{label}:{release()[0]}-slim"
    if subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode != 0:
        run("docker", "import", str(tar), name)
    return name


def base_tar(label: str, packages: Sequence[str]) -> Path:
    """Return the file system of a base image; built once."""
    codename, mirror, components = release()
    tar = CACHE / f"{label}-{codename}-slim.tar"
    if not tar.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        root = CACHE / f"root-{label}-{codename}-{os.getpid()}"
        try:
            run(
                "mmdebstrap",
                "--variant=minbase",
                '--aptopt=APT::Install-Recommends "false"',
                "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
                f"--components={','.join(sorted(components & {'main', 'universe'}))}",
                # Otherwise apt would take usrmerge, which needs Perl.
                f"--include={','.join(('usr-is-merged', *packages))}",
                codename,
                str(root),
                mirror,
                seconds=600,
                env={
                    "PYTHONPYCACHEPREFIX": "",
                    "PYTHONDONTWRITEBYTECODE": "",
                },  # these variables are for this test run, not for the image
            )
            for left_out in LEFT_OUT:
                for path in (root / left_out).glob("*"):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            (root / "var/cache/apt/archives/partial").mkdir(parents=True)
            run("tar", "-C", str(root), "--numeric-owner", "-cf", f"{tar}.{os.getpid()}", ".")
            os.rename(f"{tar}.{os.getpid()}", tar)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return tar


def prepare_images() -> None:
    """Build the base images and wheels for the tests in parallel, in advance: this takes minutes, and needs no Docker
    daemon."""
    with ThreadPoolExecutor() as pool:
        for made in [
            pool.submit(base_tar, "base", PYTHON), pool.submit(base_tar, "java", JAVA), pool.submit(wheels)
        ]:  # fmt: skip
            made.result()


def wheels(extras: Sequence[str] = EXTRAS) -> Path:
    """Return a directory with the wheels that the distribution and its build need; built once for each set of
    requirements."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text())
    wanted = [each for extra in extras for each in project["project"]["optional-dependencies"][extra]]
    requirements = sorted(project["project"]["dependencies"] + project["build-system"]["requires"] + wanted)
    key = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:12]
    folder = CACHE / f"wheels-{key}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        fresh = CACHE / f"wheels-{key}-{os.getpid()}"
        try:
            run(
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--quiet",
                "--wheel-dir",
                str(fresh),
                *requirements,
                seconds=BUILD_SECONDS_MAX,
            )
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def size_of(image: str) -> int:
    """Return the size in bytes, including layers shared with other images."""
    return int(run("docker", "image", "inspect", "--format", "{{.Size}}", image))


def nameless_images() -> set[str]:
    return set(run("docker", "image", "ls", "--quiet", "--filter", "dangling=true").split())


def demand_docker(require_service: Callable[[object, str], None]) -> None:
    """Skip the test, or fail it where services are required, if Docker or a program that builds the image is
    missing."""
    reason = no_docker()
    require_service(reason is None, str(reason))
    require_service(shutil.which("mmdebstrap") and shutil.which("apt-get"), "a base image needs mmdebstrap and apt")


@dataclass(frozen=True, slots=True)
class Image:
    """``build_seconds``: duration of ``docker build`` without the time for the base image and the wheels."""

    name: str
    build_seconds: float


@contextmanager
def built(base: str, context: Path, target: str = BROKER) -> Iterator[Image]:
    """Build an image of this tree with the Dockerfile and the legacy builder, without a network.

    ``context``: an empty directory. The image and the rest of the build are removed at the end.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    theirs = run("docker", "run", "--rm", base, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if theirs.strip() != version:
        pytest.skip(f"wheels for Python {version} do not fit the base image's Python {theirs.strip()}")
    for name in CONTEXT:
        if (TREE / name).is_dir():
            shutil.copytree(TREE / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(TREE / name, context / name)
    for name in CONTEXT_FILES:
        shutil.copy2(TREE / name, context / name)
    shutil.copytree(wheels((*EXTRAS, "spark") if target == PIPELINE else EXTRAS), context / "wheels")
    if COMPILED_WHEEL in os.environ:
        (wheel,) = Path(os.environ[COMPILED_WHEEL]).glob("tandemmq-*.whl")
        shutil.copy2(wheel, context / "wheels")

    before = nameless_images()
    name = f"{target}-test:{os.getpid()}-{hashlib.sha256(base.encode()).hexdigest()[:8]}"
    arguments = (f"BASE={base}", f"EXTRAS=[{','.join(EXTRAS)}]", "COMPILE=0")  # used if there is no wheel
    asked = [text for argument in arguments for text in ("--build-arg", argument)]
    command = (
        "docker",
        "build",
        "--network",
        "none",
        "--force-rm",
        *asked,
        "--target",
        target,
        "-t",
        name,
        str(context),
    )
    started = time.monotonic()
    run(*command, seconds=BUILD_SECONDS_MAX, env={"DOCKER_BUILDKIT": "0"})
    try:
        yield Image(name, time.monotonic() - started)
    finally:
        run("docker", "image", "rm", "--force", name)
        # Remove the images of the earlier stages, which the legacy builder leaves. Some may be from another run: Docker
        # keeps those in use.
        for stage in nameless_images() - before:
            subprocess.run(["docker", "image", "rm", stage], capture_output=True, timeout=60, check=False)
