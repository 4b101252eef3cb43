"""The profile `pipeline` of docker-compose.yml: a message lake beside the pair that loses nothing when masters die."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tandemmq.cli.pipeline.jobs import archive
from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.compose_pair import SERVICES, Pair
from tests.support.acceptance.docker_image import (
    BROKER,
    JAVA,
    PIPELINE,
    TREE,
    Image,
    base_image,
    built,
    compose_command,
    run,
)
from tests.support.acceptance.load import Books
from tests.support.acceptance.under_load import demand_kept, under_load
from tests.support.prove import IS_PROOF

pytestmark = [pytest.mark.service, pytest.mark.docker]

PROOF = pytest.mark.skipif(not IS_PROOF, reason="TANDEMMQ_PROVE not set")
ARCHIVE = "archive"
#: Spark starts, plans and writes, on a machine that is busy with the pair's load.
LAKE_SECONDS_MAX = 600.0
#: Small files, so that many are sealed, handed over and read.
SMALL = """
services:
  active: &small
    environment:
      TANDEMMQ_STORE__JOURNAL_MAX_FILE_LENGTH: 128kb
      TANDEMMQ_STORE__CHECKPOINT_INTERVAL: 1s
      TANDEMMQ_STORE__CLEANUP_INTERVAL: 1s
  standby: *small
"""
#: In the container: message ids, queues and bodies of all rows.
ASK = (
    "import json\nfrom pyarrow import parquet\n"
    "rows = parquet.read_table('/lake/messages', columns=['message_id', 'destination', 'body']).to_pylist()\n"
    "print(json.dumps([[row['message_id'], row['destination'], (row['body'] or b'').decode()] for row in rows]))"
)


# -- what the file says ------------------------------------------------------------------------------------------------


def services(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the services that docker-compose makes of the file, with the profile; no daemon is needed."""
    yaml = pytest.importorskip("yaml")
    command = compose_command()
    if command is None:
        pytest.skip("neither docker-compose nor the compose plug-in of docker is installed")
    output = run(*command, "-f", str(TREE / "docker-compose.yml"), "--profile", "pipeline", "config", env=environment)
    found: dict[str, Any] = yaml.safe_load(output)["services"]
    return found


def test_who_does_not_ask_for_the_profile_gets_the_pair_alone() -> None:
    found = services()
    assert [name for name, service in found.items() if not service.get("profiles")] == list(SERVICES)
    assert found[ARCHIVE]["profiles"] == ["pipeline"]
    assert {found[name]["build"]["target"] for name in SERVICES} == {BROKER}
    assert found[ARCHIVE]["build"]["target"] == PIPELINE


def test_the_third_container_only_reads_the_store_and_is_as_bound_as_the_others() -> None:
    found = services()
    own = found[ARCHIVE]
    mounts = {str(mount).split(":")[1]: mount for mount in map(_mount, own["volumes"])}
    assert mounts["/var/lib/tandemmq"].endswith(":ro")
    assert not mounts["/lake"].endswith(":ro")
    for limit in ("read_only", "cap_drop", "security_opt"):
        assert own[limit] == found["active"][limit]


def _mount(volume: Any) -> str:
    if isinstance(volume, str):
        return volume
    return f"{volume['source']}:{volume['target']}" + (":ro" if volume.get("read_only") else "")


def test_files_are_kept_for_the_lake_where_that_was_asked_for() -> None:
    for environment, expected in (({}, "false"), ({"ARCHIVE_DATA_LOGS": "true"}, "true")):
        found = services({"ARCHIVE_DATA_LOGS": "", **environment})
        assert {found[name]["environment"]["TANDEMMQ_STORE__ARCHIVE_DATA_LOGS"] for name in SERVICES} == {expected}


def test_its_command_is_one_that_the_command_line_takes(tmp_path: Path) -> None:
    command = services()[ARCHIVE]["command"]
    words = command if isinstance(command, list) else command.split()
    assert words[:2] == ["pipeline", "archive"]
    here = [str(tmp_path) if word.startswith("/") else word for word in words[2:]]
    with archive.make_context("archive", here) as context:
        assert context.params["every"] == 10.0


# -- for real ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def images(broker_image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Of the broker, and of the jobs."""
    with built(base_image("java", JAVA), tmp_path_factory.mktemp("pipeline"), PIPELINE) as pipeline:
        yield broker_image.name, pipeline.name


@pytest.fixture
def pair(images: tuple[str, str], tmp_path: Path) -> Iterator[Pair]:
    small = tmp_path / "small.yml"
    small.write_text(SMALL)
    broker, pipeline = images
    environment = {
        "TANDEMMQ_PIPELINE_IMAGE": pipeline,
        "ARCHIVE_DATA_LOGS": "true",
        "COMPOSE_PROFILES": "pipeline",
    }
    pair = Pair(broker, [small], environment)
    try:
        pair.compose("up", "-d", "--no-build")
        pair.until_settled()
        yield pair
        assert pair.check(broker)["problems"] == []
    finally:
        print(pair.compose("logs", "--no-color", "--tail", "60"))
        pair.down()


@pytest.mark.prove
@pytest.mark.timeout(3600)
@PROOF
def test_the_lake_has_every_message_once_whoever_was_master(pair: Pair) -> None:
    """The master is killed under load, and its successor stopped: each promotion seals what was written before."""
    first, second = pair.until_settled()

    def kill(books: Books) -> None:
        run("docker", "kill", "-s", "KILL", pair.container(first))
        pair.until_role(second, "master")
        pair.compose("up", "-d", "--no-build", first)
        pair.until_role(first, "standby")

    stored = set[str]()
    for queue, acts, master, standby in (("one", (kill,), second, first), ("two", (), first, second)):
        books, _ = under_load(list(pair.stomp.values()), *acts, queue=f"/queue/{queue}")
        demand_kept(books)
        stored.update(f"{queue} {body}" for body in books.stored)
        run("docker", "stop", pair.container(master))
        pair.until_role(standby, "master")
        wait_until(lambda: stored <= lake(pair), f"all of {queue} is in the lake", LAKE_SECONDS_MAX)
        pair.compose("up", "-d", "--no-build", master)
        pair.until_settled()
    assert pair.inspect(ARCHIVE, "{{.RestartCount}}") == "0"

    container = pair.container(ARCHIVE)
    run("docker", "stop", container)
    assert run("docker", "inspect", "--format", "{{.State.ExitCode}}", container).strip() == "0"


def lake(pair: Pair) -> set[str]:
    """Queue and body of all that is in the lake; no id occurs twice."""
    try:
        output = run("docker", "exec", pair.container(ARCHIVE), "python3", "-c", ASK)
    except AssertionError as error:
        if "FileNotFoundError" in str(error):
            return set()
        raise
    rows = json.loads(output.splitlines()[-1])
    ids = [message_id for message_id, _, _ in rows]
    assert len(ids) == len(set(ids)), "a message is in the lake twice"
    return {f"{destination} {body}" for _, destination, body in rows}
