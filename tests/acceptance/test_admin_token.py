"""A real broker hands over for who may: its own user on the host, who was given the token, a user with admin rights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandemmq.cli import main
from tests.support.acceptance.broker_process import ROOT, BrokerProcess, serving
from tests.support.security.passwords import cheap

NOBODY = 65534

SETTINGS = """\
[security]
users_file = "{users}"
allow_anonymous = "true"
failed_login_delay = 1

[[security.authorization]]
queue = ">"
read = ["*"]
write = ["*"]
admin = ["operators"]
[[security.authorization]]
topic = ">"
admin = ["operators"]
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    users, settings = tmp_path / "users", tmp_path / "tandemmq.toml"
    users.write_text(f"ann:{cheap('secret')}:operators:\nbob:{cheap('secret')}:shops:\n")
    users.chmod(0o600)
    settings.write_text(SETTINGS.format(users=users))
    with serving(BrokerProcess(tmp_path / "data", "a", "--config", str(settings))) as (broker,):
        yield broker


def handover(admin: str, **environment: str) -> Result:
    """The command, in this process: an interpreter for each would take most of the time."""
    return CliRunner().invoke(main, ["handover", "--admin", admin, "--wait", "0"], env=environment)


@pytest.mark.promise("admin-rights")
def test_a_handover_is_for_who_may(broker: BrokerProcess) -> None:
    place = f"127.0.0.1:{broker.admin}"
    for wrong in (
        handover(f"http://{place}", TANDEMMQ_ADMIN_TOKEN="tandemmq-admin-wrong"),
        handover(f"http://ann:wrong@{place}"),
        handover(f"http://bob:secret@{place}"),
    ):
        assert wrong.exit_code == 1, wrong.output
        assert "the admin token is needed, or a user with admin rights" in wrong.output
    token = broker.authorization["Authorization"].split()[1]
    for admin, environment in (
        (f"http://{place}", {}),
        (f"http://{place}", {"TANDEMMQ_ADMIN_TOKEN": token}),
        (f"http://ann:secret@{place}", {}),
    ):
        done = handover(admin, **environment)
        assert done.exit_code == 0, done.output
        assert "let the lock go" in done.output
        broker.wait_role("master")


def test_another_user_of_the_host_is_told_what_he_lacks(broker: BrokerProcess) -> None:
    token = Path(broker.data, "index", "a.admin-token")
    under = ()
    if os.geteuid() == 0:  # whom no mode keeps out: root without the right to what others own
        os.chown(token, NOBODY, NOBODY)
        under = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    else:
        token.chmod(0)
    command = [*under, sys.executable, "-m", "tandemmq", "handover", "--admin", f"http://127.0.0.1:{broker.admin}"]
    done = subprocess.run([*command, "--wait", "0"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"wants its admin token, in {token}: Permission denied" in done.stderr
    assert "--login NAME" in done.stderr
