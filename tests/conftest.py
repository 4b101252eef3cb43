"""Shared parts of all tests: the selection of tests, the workers that run them, and their expected duration."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.promises import PROMISES
from tests.support.prove import IS_FIXED, IS_PROOF, IS_THOROUGH, REQUIRE_SERVICES, THOROUGH, is_set
from tests.support.seconds import measured
from tests.support.tree import TESTS

pytest_plugins = (
    "tests.support.descriptors", "tests.support.virtual_time",
    "tests.support.services.browser", "tests.support.services.databases", "tests.support.services.images",
)  # fmt: skip

SERVICES = "TANDEMMQ_SERVICES"
# No test in these is fast: they start brokers, clients and other programs, wait for clocks, or try very many orders and
# images. Elsewhere tests/seconds.txt decides.
SLOW = ("acceptance/", "contract/", "crash/", "interop/", "model/simulator/", "mutants/")
MEASURED = measured()
HOW_LONG = (
    "on two quiet cores about: make test 26 s, pytest 2 min 15 s, .ci/run 25 min "
    f"({THOROUGH}=1 pytest --services is its larger part)"
)
# Spark; PostgreSQL and MariaDB; a JMS client and its broker; an image: each is started, or made, by one worker.
TOGETHER = (
    "tests/unit/pipeline/", "tests/interop/pipeline/", "tests/contract/locker/", "tests/interop/jms/",
    "tests/acceptance/test_compose",
)  # fmt: skip
# Each process may start separate servers, and one or two JVMs.
WORKERS_MAX = 8


# Number of tests that do not run, by reason.
LEFT_OUT = pytest.StashKey[Counter[str]]()
# In a run for which a person waits, properties have fewer examples, except those that set their number.
# Their examples are drawn where seeds are.
settings.register_profile("thorough", derandomize=IS_FIXED)
settings.register_profile("quick", max_examples=30, deadline=None, derandomize=IS_FIXED)
settings.load_profile("thorough" if IS_THOROUGH else "quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--services",
        action="store_true",
        default=any(map(is_set, ("CI", SERVICES, REQUIRE_SERVICES))),
        help=f"with the tests that start programs which pip does not install; the same as {SERVICES}=1",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Several where all of the tests are requested; a run of named tests, or one that prints, has none.

    Fast tests keep a core busy each. The others wait for processes and clocks for half of their time, and each worker
    reads all tests first: with two more workers than cores the cores are just busy.
    """
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.getoption("capture") == "no":
        return 0
    cores = len(os.sched_getaffinity(0))
    return min(cores if config.getoption("markexpr") == "fast" else cores + 2, WORKERS_MAX)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """A worker is given a module or class at a time, or all tests that share a server."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _scope(nodeid)

    return Together(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()
    if config.getoption("services"):
        os.environ[SERVICES] = "1"  # for those that tests start
    _take_signals()
    if sys.dont_write_bytecode:
        _keep_bytecode(config)


def _take_signals() -> None:
    """Handle signals as in a terminal. A script that starts pytest with & makes it ignore Ctrl-C, others block signals;
    then all programs that tests start, stop and wait for would do so, too."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP})
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def _keep_bytecode(config: pytest.Config) -> None:
    """In pytest's cache, though not beside the sources: each worker and each broker would compile every module again,
    which is a third of its start."""
    cache = getattr(config, "cache", None)
    if cache is None:  # as with -p no:cacheprovider: for this run only
        temporary = tempfile.TemporaryDirectory(prefix="tandemmq-bytecode-", ignore_cleanup_errors=True)
        config.add_cleanup(temporary.cleanup)
        directory = temporary.name
    else:
        directory = str(cache.mkdir("bytecode"))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = directory
    sys.dont_write_bytecode = False


def pytest_report_header(config: pytest.Config) -> str | None:
    return HOW_LONG if config.args_source is pytest.Config.ArgsSource.TESTPATHS else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the files without fast tests where only fast tests are requested."""
    if config.getoption("markexpr") != "fast" or collection_path == TESTS or TESTS not in collection_path.parents:
        return None
    path = _below(collection_path) + ("/" if collection_path.is_dir() else "")
    return None if _is_fast(path) else True


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Some hundred thousand objects are made that stay: the collector of garbage need not look at them again and
    again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is fast, leave out what was not requested, and let several workers begin with the longest."""
    unwanted = {}
    if not IS_THOROUGH:
        unwanted["thorough"] = f"thorough: with {THOROUGH}=1, and in CI"
    if not IS_PROOF:
        unwanted["proof_only"] = "proof_only: in `make prove`"
    if not config.getoption("services"):
        unwanted["service"] = "service: with --services"
    kept, left_out = [], []
    for item in items:
        names = _names(item)
        for mark in names & {"service", "docker"}:
            if f"mark.{mark}" not in _text(item.path):
                raise pytest.UsageError(f"{item.nodeid}: its file has no `mark.{mark}`, by which CI finds it")
        if not names & {"thorough", "service", "prove"} and _is_fast(_path(item)):
            item.add_marker(pytest.mark.fast)
        reason = next((unwanted[name] for name in unwanted if name in names), None)
        if reason is not None and not _is_named(config, item):
            left_out.append(item)
            config.stash[LEFT_OUT][reason] += 1
            continue
        if "service" in names and "service" in unwanted:  # a name on the command line is not a request for services
            item.add_marker(pytest.mark.skip(reason=unwanted["service"]))
        kept.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    if hasattr(config, "workerinput"):
        _longest_first(kept)
    items[:] = kept


def _names(item: pytest.Item) -> set[str]:
    """The names of its marks. An acceptance test without a promise is thorough."""
    names = {mark.name for mark in item.iter_markers()}
    promised = {name for mark in item.iter_markers("promise") for name in mark.args}
    if unknown := promised - PROMISES.keys():
        raise pytest.UsageError(f"{item.nodeid}: there is no promise {', '.join(sorted(unknown))}")
    if not promised and _path(item).startswith("acceptance/"):
        item.add_marker(pytest.mark.thorough)
        names.add("thorough")
    return names


def _is_named(config: pytest.Config, item: pytest.Item) -> bool:
    """The command line has the node id of this test, or of its class or function."""
    return any("::" in arg and f"{item.nodeid}[".startswith((f"{arg}[", f"{arg}::")) for arg in config.args)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object, error: object) -> None:
    """Each worker leaves out the same tests."""
    if output := getattr(node, "workeroutput", None):
        node.config.stash[LEFT_OUT] = Counter(output["left_out"])  # type: ignore[attr-defined]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash[LEFT_OUT])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left_out := config.stash[LEFT_OUT]:
        terminalreporter.line("left out: " + "; ".join(f"{count} {reason}" for reason, count in left_out.items()))


def _path(item: pytest.Item) -> str:
    """Below this directory."""
    return _below(item.path)


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def _below(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def _is_fast(path: str) -> bool:
    """Return whether the file may have fast tests."""
    return not path.startswith(SLOW) and (path not in MEASURED or MEASURED[path].is_fast)


def _longest_first(items: list[pytest.Item]) -> None:
    """By what one worker gets at once: first what shares a server, which no other worker can help with. What was not
    measured may take as long as its limit."""
    seconds: dict[str, float] = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        found = MEASURED.get(_path(item))
        scope = _scope(item.nodeid)
        own = found.seconds / found.tests if found else limit.args[0] if limit else 0.0
        seconds[scope] = seconds.get(scope, 0.0) + own
    items.sort(key=lambda item: (_scope(item.nodeid) not in TOGETHER, -seconds[_scope(item.nodeid)]))


def _scope(nodeid: str) -> str:
    """Return the key of tests that one worker runs, without another one beside it."""
    together = TOGETHER if is_set(SERVICES) else ()
    return next((each for each in together if nodeid.startswith(each)), nodeid.rpartition("::")[0])


Require = Callable[[object, str], None]


@pytest.fixture(scope="session")
def require_program() -> Require:
    """`require_program(condition, reason)`: skip for want of something that most machines have, such as openssl.

    With TANDEMMQ_REQUIRE_SERVICES=1, as where everything is installed, the want is a failure.
    """

    def require(condition: object, reason: str) -> None:
        if condition:
            return
        if is_set(REQUIRE_SERVICES):
            pytest.fail(f"{reason} ({REQUIRE_SERVICES} is set)", pytrace=False)
        pytest.skip(reason)

    return require


@pytest.fixture(scope="session")
def require_service(pytestconfig: pytest.Config, require_program: Require) -> Require:
    """The same for a program that is started only if services are requested."""

    def require(condition: object, reason: str) -> None:
        if not pytestconfig.getoption("services"):
            pytest.skip("service: with --services")
        require_program(condition, reason)

    return require
