"""The pair of docker-compose.yml, started for real, and its master killed.

No image is pulled: the base is made with debootstrap from the machine's own release and package mirror, and the
dependencies come as wheels that pip brought to the machine. Both are kept in TANDEMMQ_TEST_CACHE (default
/var/tmp/tandemmq-test) and made once. Docker is the one service that a run may miss; the reason is printed.
"""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import stomp
from stomp.utils import Frame

TREE = Path(__file__).parents[2]
CACHE = Path(os.environ.get("TANDEMMQ_TEST_CACHE", "/var/tmp/tandemmq-test"))
CONTEXT = ("tandemmq", "broker", "store", "journal", "index", "locker", "config", "pyproject.toml", "README.md")
CONTEXT_FILES = ("LICENSE", "Dockerfile", ".dockerignore", "docker-compose.yml")

T = TypeVar("T")

QUEUE = "/queue/compose"
# stomp.py closes its socket in another thread: whoever uses it meanwhile meets the bare error of the system.
LOST = (stomp.exception.StompException, OSError, AttributeError)
MESSAGES_BEFORE = 200
MESSAGES_AFTER = 200
WAIT_SECONDS_MAX = 60.0

pytestmark = [pytest.mark.service, pytest.mark.timeout(900)]


def run(*command: str, seconds: float = 300, env: Mapping[str, str] | None = None) -> str:
    """The output of a command; what it said is in the failure when it fails."""
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


def until(ask: Callable[[], T | None], what: str, seconds: float = WAIT_SECONDS_MAX) -> T:
    """What ``ask`` answers once it is neither None nor False."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds:g} seconds in vain: {what}")


# -- the image ---------------------------------------------------------------------------------------------------------


def no_docker() -> str | None:
    """Why there is no Docker here, or None."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    if subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False).returncode != 0:
        return "no Docker daemon answers"
    if compose_command() is None:
        return "neither docker-compose nor the compose plug-in of docker is installed"
    if os.geteuid() != 0:
        return "debootstrap, which makes the base image, needs root"
    return None


def compose_command() -> list[str] | None:
    if shutil.which("docker-compose") is not None:
        return ["docker-compose"]
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    return None


def release() -> tuple[str, str, set[str]]:
    """Codename, mirror and components of the machine's own release, as its apt sources name them."""
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


def base_image() -> str:
    """The name of an image with the machine's own release and its Python; made once, kept as a tar file."""
    codename, mirror, components = release()
    tar = CACHE / f"base-{codename}.tar"
    if not tar.exists():
        root = CACHE / f"root-{codename}-{os.getpid()}"
        packages = "python3,python3-venv,ca-certificates"
        try:
            run(
                "debootstrap",
                "--variant=minbase",
                f"--components={','.join(sorted(components & {'main', 'universe'}))}",
                f"--include={packages}",
                codename,
                str(root),
                mirror,
                seconds=600,
            )
            shutil.rmtree(root / "var/cache/apt/archives")
            (root / "var/cache/apt/archives/partial").mkdir(parents=True)
            run("tar", "-C", str(root), "--numeric-owner", "-cf", f"{tar}.{os.getpid()}", ".")
            os.rename(f"{tar}.{os.getpid()}", tar)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    name = f"tandemmq-test-base:{codename}"
    if subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode != 0:
        run("docker", "import", str(tar), name)
    return name


def wheels() -> Path:
    """A folder with the wheels that the distribution and its build need; made once for each set of requirements."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text())
    requirements = sorted(project["project"]["dependencies"] + project["build-system"]["requires"])
    key = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:12]
    folder = CACHE / f"wheels-{key}"
    if not folder.exists():
        fresh = CACHE / f"wheels-{key}-{os.getpid()}"
        try:
            run(sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(fresh), *requirements, seconds=600)
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder


def nameless_images() -> set[str]:
    return set(run("docker", "image", "ls", "--quiet", "--filter", "dangling=true").split())


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, require_service: Callable[[object, str], None]) -> Iterator[str]:
    """The image of this tree, by the Dockerfile and the legacy builder, without a network."""
    reason = no_docker()
    if reason is not None:
        pytest.skip(reason)
    require_service(shutil.which("debootstrap") and shutil.which("apt-get"), "a base image needs debootstrap and apt")
    CACHE.mkdir(parents=True, exist_ok=True)
    base = base_image()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    theirs = run("docker", "run", "--rm", base, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    if theirs.strip() != version:
        pytest.skip(f"wheels for Python {version} do not fit the base image's Python {theirs.strip()}")

    context = tmp_path_factory.mktemp("context")
    for name in CONTEXT:
        if (TREE / name).is_dir():
            shutil.copytree(TREE / name, context / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(TREE / name, context / name)
    for name in CONTEXT_FILES:
        shutil.copy2(TREE / name, context / name)
    shutil.copytree(wheels(), context / "wheels")

    before = nameless_images()
    name = f"tandemmq-test:{os.getpid()}"
    run(
        *(
            "docker",
            "build",
            "--network",
            "none",
            "--force-rm",
            "--build-arg",
            f"BASE={base}",
            "-t",
            name,
            str(context),
        ),
        seconds=600,
        env={"DOCKER_BUILDKIT": "0"},
    )
    yield name
    run("docker", "image", "rm", "--force", name)
    stages = nameless_images() - before  # what the legacy builder leaves of the stages that are not the last
    if stages:
        run("docker", "image", "rm", *stages)


# -- the pair ----------------------------------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


class Pair:
    """The two services of docker-compose.yml, on ports of their own and a volume of their own."""

    def __init__(self, image: str) -> None:
        command = compose_command()
        assert command is not None, "the fixture `image` has skipped without docker-compose"
        self.project = f"tandemmqtest{os.getpid()}"
        self._command = [*command, "-p", self.project, "-f", str(TREE / "docker-compose.yml")]
        ports = free_ports(4)
        self.stomp = {"active": ports[0], "standby": ports[1]}
        self.admin = {"active": ports[2], "standby": ports[3]}
        self._env = {
            "TANDEMMQ_IMAGE": image,
            "ACTIVE_STOMP_PORT": str(ports[0]),
            "STANDBY_STOMP_PORT": str(ports[1]),
            "ACTIVE_ADMIN_PORT": str(ports[2]),
            "STANDBY_ADMIN_PORT": str(ports[3]),
        }

    def compose(self, *arguments: str) -> str:
        return run(*self._command, *arguments, env=self._env)

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).strip()

    def inspect(self, service: str, what: str) -> str:
        return run("docker", "inspect", "--format", what, self.container(service)).strip()

    def page(self, service: str, page: str) -> tuple[int, dict[str, Any]]:
        """Status code and JSON of an admin page; code 0 when nobody answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.admin[service]}/{page}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, {}
        except (OSError, ValueError):
            return 0, {}

    def role(self, service: str) -> str:
        return str(self.page(service, "status")[1].get("role", "silent"))

    def until_role(self, service: str, role: str) -> None:
        until(lambda: self.role(service) == role, f"{service} becomes {role}; it is {self.role(service)}")

    def down(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


@pytest.fixture
def pair(image: str) -> Iterator[Pair]:
    pair = Pair(image)
    try:
        pair.compose("up", "-d", "--no-build")
        yield pair
    finally:
        print(pair.compose("logs", "--no-color", "--tail", "60"))
        pair.down()


# -- the client --------------------------------------------------------------------------------------------------------


class Client(stomp.ConnectionListener):
    """stomp.py with both addresses, whoever is master; remembers receipts and messages.

    Docker's proxy accepts connections for a container that does not listen, so a refused CONNECT, and not a refused
    connection, tells the standby: the addresses change places at each attempt.
    """

    def __init__(self, ports: Sequence[int]) -> None:
        self._addresses = [("127.0.0.1", port) for port in ports]
        self._news = threading.Condition()
        self.receipts: set[str] = set()
        self.messages: list[Frame] = []
        self.connection = self._connect()

    def _connect(self) -> stomp.Connection12:
        def attempt() -> stomp.Connection12 | None:
            self._addresses.reverse()
            connection = stomp.Connection12(
                self._addresses, reconnect_attempts_max=1, reconnect_sleep_initial=0.05, heartbeats=(0, 0), timeout=5
            )
            connection.set_listener("client", self)
            try:
                connection.connect(wait=True)
            except LOST:
                return None
            return connection

        return until(attempt, "a master accepts a client")

    def on_receipt(self, frame: Frame) -> None:
        with self._news:
            self.receipts.add(frame.headers["receipt-id"])
            self._news.notify_all()

    def on_message(self, frame: Frame) -> None:
        with self._news:
            self.messages.append(frame)
            self._news.notify_all()

    def on_disconnected(self) -> None:
        with self._news:
            self._news.notify_all()

    def send(self, body: str) -> None:
        """Send until there is a receipt: over a new connection when the old one dies first."""
        while True:
            try:
                self.connection.send(QUEUE, body, headers={"persistent": "true", "receipt": body})
            except LOST:
                self.connection = self._connect()
                continue
            with self._news:
                self._news.wait_for(lambda: body in self.receipts or not self.connection.is_connected(), 30)
            if body in self.receipts:
                return
            self.connection = self._connect()

    def receive(self, wanted: set[str]) -> list[str]:
        """Acknowledge what comes until all that is wanted came; the bodies in the order of their arrival."""
        self.connection.subscribe(QUEUE, id="1", ack="client-individual")
        with self._news:
            came = self._news.wait_for(lambda: wanted <= {cast(str, frame.body) for frame in self.messages}, 60)
            bodies = [cast(str, frame.body) for frame in self.messages]
        assert came, f"lost with a receipt: {sorted(wanted - set(bodies))[:10]}"
        for frame in self.messages:
            self.connection.ack(frame.headers["ack"])
        self.connection.disconnect(receipt="bye")
        return bodies


# -- the story ---------------------------------------------------------------------------------------------------------


def test_the_standby_takes_over_from_a_killed_master_and_nothing_with_a_receipt_is_lost(pair: Pair) -> None:
    until(lambda: {"master", "standby"} == {pair.role("active"), pair.role("standby")}, "a master and a standby")
    master, standby = ("active", "standby") if pair.role("active") == "master" else ("standby", "active")
    until(lambda: pair.inspect(standby, "{{.State.Health.Status}}") == "healthy", "the standby's container is healthy")
    assert pair.page(standby, "health?ready")[0] == 503

    client = Client(list(pair.stomp.values()))
    for number in range(MESSAGES_BEFORE):
        client.send(f"1-before-{number:04}")
    with subprocess.Popen(["docker", "kill", pair.container(master)], stdout=subprocess.DEVNULL) as killer:
        number = 0
        while number < MESSAGES_AFTER or killer.poll() is None:
            client.send(f"2-after-{number:06}")
            number += 1
    assert killer.returncode == 0
    pair.until_role(standby, "master")
    client.send("3-survivor")

    # The killed one comes back, and stands by for the other.
    pair.compose("up", "-d", "--no-build", master)
    pair.until_role(master, "standby")

    bodies = client.receive(set(client.receipts))
    # Sent one after the other, so a repetition may come twice, but nothing comes out of order.
    first_seen = list(dict.fromkeys(bodies))
    assert first_seen == sorted(first_seen)


def test_a_stopped_master_hands_over_and_ends_with_0(pair: Pair) -> None:
    until(lambda: {"master", "standby"} == {pair.role("active"), pair.role("standby")}, "a master and a standby")
    master, standby = ("active", "standby") if pair.role("active") == "master" else ("standby", "active")
    container = pair.container(master)
    pair.compose("stop", master)
    pair.until_role(standby, "master")
    assert run("docker", "inspect", "--format", "{{.State.ExitCode}}", container).strip() == "0"


def test_the_image_runs_as_a_plain_user_and_knows_its_command(image: str) -> None:
    assert run("docker", "run", "--rm", "--entrypoint", "id", image, "-un").strip() == "tandemmq"
    assert "Usage" in run("docker", "run", "--rm", image, "--help")
