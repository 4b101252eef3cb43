"""Settings: their sources, the precedence of the sources, and the errors for wrong settings."""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.config.errors import SettingsError, UnknownSetting
from tandemmq.config.load import Flags, load
from tandemmq.config.settings import Settings
from tandemmq.config.show import show
from tests.support.tree import ROOT


def test_without_anything_the_defaults_hold() -> None:
    settings = load(None, {})
    assert settings.store.directory == "./tandemmq-data"
    assert [str(connector.address) for connector in settings.connectors] == ["127.0.0.1:61613", "127.0.0.1:61616"]
    assert [connector.protocol for connector in settings.connectors] == ["stomp", "openwire"]
    assert str(settings.admin.address) == "127.0.0.1:8161"
    locker, store = settings.locker, settings.store
    assert (locker.type, locker.use_lock, locker.fail_if_locked) == ("shared-file", True, False)
    assert (locker.lock_acquire_sleep_interval, locker.lock_keep_alive_period) == (50, 500)
    assert (store.journal_disk_sync_strategy, store.journal_max_file_length) == ("always", 33_554_432)
    assert (store.checkpoint_interval, store.cleanup_interval) == (5_000, 1_000)
    assert (settings.broker.stomp_nack, settings.broker.maximum_redeliveries) == ("dlq", 6)


def test_the_name_is_host_and_first_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "host a.example")
    assert load(None, {}).broker.name == "host-a.example-61613"
    assert load(None, {}, flags=Flags(stomp="0.0.0.0:7")).broker.name == "host-a.example-7"
    assert load(None, {}, flags=Flags(stomp="off")).broker.name == "host-a.example-61616"
    assert load(None, {}, flags=Flags(stomp="off", openwire="off")).broker.name == "host-a.example"
    assert load(None, {}, flags=Flags(name="b")).broker.name == "b"


def test_the_later_source_overrides_the_earlier(file: Callable[[str], str]) -> None:
    path = file(
        "[store]\ndirectory = 'file'\ncheckpoint_interval = '1s'\ncleanup_interval = 7\n[broker]\nname = 'file'"
    )
    environment = {"TANDEMMQ_STORE__DIRECTORY": "environment", "TANDEMMQ_STORE__CHECKPOINT_INTERVAL": "2s"}
    environment["TANDEMMQ_BROKER__NAME"] = "environment"
    overrides = ["store.checkpoint_interval=3s", "broker.name=set"]
    settings = load(path, environment, overrides, Flags(name="flag"))
    assert (settings.store.cleanup_interval, settings.store.directory) == (7, "environment")
    assert (settings.store.checkpoint_interval, settings.broker.name) == (3_000, "flag")
    assert settings.origin("store.cleanup_interval") == path
    assert settings.origin("store.directory") == "environment TANDEMMQ_STORE__DIRECTORY"
    assert settings.origin("store.checkpoint_interval") == "--set"
    assert settings.origin("broker.name") == "--name"
    assert settings.origin("store.checkpoint_bytes") is None


def test_the_last_of_several_overrides_wins() -> None:
    assert load(None, {}, ["broker.name=a", "broker.name=b"]).broker.name == "b"


def test_variables_of_others_are_left_alone() -> None:
    environment = {"TANDEMMQ_CONFIG": "x", "TANDEMMQ_REQUIRE_SERVICES": "1", "HOME": "/", "OTHER__X": "1"}
    assert load(None, environment).origins == {}


def test_units_are_understood_wherever_a_value_is_read(file: Callable[[str], str]) -> None:
    path = file("[store]\njournal_max_file_length = '1mb'\ncheckpoint_bytes = 65536")
    settings = load(path, {"TANDEMMQ_STORE__JOURNAL_DISK_SYNC_INTERVAL": "250ms"}, ["locker.lock_keep_alive_period=0"])
    assert settings.store.journal_max_file_length == 1 << 20
    assert settings.store.checkpoint_bytes == 65_536
    assert settings.store.journal_disk_sync_interval == 250
    assert settings.locker.lock_keep_alive_period == 0


def test_names_are_a_list_in_a_file_and_have_commas_between_them_elsewhere(file: Callable[[str], str]) -> None:
    in_file = load(file('[store]\nignore_unsafe_volume = ["sshfs", "nfs3"]'), {})
    environment = load(None, {"TANDEMMQ_STORE__IGNORE_UNSAFE_VOLUME": "sshfs,nfs3"})
    override = load(None, {}, ["store.ignore_unsafe_volume=sshfs, nfs3"])
    assert {tuple(each.store.ignore_unsafe_volume) for each in (in_file, environment, override)} == {("sshfs", "nfs3")}


def test_data_and_admin_and_stomp_are_options(file: Callable[[str], str]) -> None:
    path = file("[[connectors]]\nuri = 'stomp://h:1'\n[[connectors]]\nuri = 'stomp://h:2?maximumConnections=3'")
    assert [connector.address.port for connector in load(path, {}).connectors] == [1, 2]
    settings = load(path, {}, flags=Flags(data="d", admin="off", stomp="[::1]:9"))
    assert settings.store.directory == "d"
    assert settings.admin.address is None
    assert [str(connector.address) for connector in settings.connectors] == ["[::1]:9"]
    assert settings.origin("connectors") == "--stomp"


def test_openwire_has_an_option_of_its_own(file: Callable[[str], str]) -> None:
    path = file("[[connectors]]\nuri = 'openwire://h:1'\n[[connectors]]\nuri = 'stomp://h:2'")
    assert [connector.address.port for connector in load(path, {}).connectors] == [1, 2]
    assert [connector.address.port for connector in load(path, {}, flags=Flags(openwire="off")).connectors] == [2]
    assert [connector.scheme for connector in load(None, {}, flags=Flags(openwire="off")).connectors] == ["stomp"]
    settings = load(path, {}, flags=Flags(openwire="h:3"))
    assert [str(connector.address) for connector in settings.connectors] == ["h:2", "h:3"]


def test_mqtt_and_websocket_are_asked_for(file: Callable[[str], str]) -> None:
    assert [each.scheme for each in load(None, {}).connectors] == ["stomp", "openwire"]
    settings = load(None, {}, flags=Flags(mqtt="h:1", ws="h:2"))
    assert [f"{each.scheme}://{each.address}" for each in settings.connectors[2:]] == ["mqtt://h:1", "ws://h:2"]
    path = file("[[connectors]]\nuri = 'mqtt+nio://h:1'\n[[connectors]]\nuri = 'wss://h:2'")
    left = load(path, {}, flags=Flags(mqtt="off", ws="off"))
    assert [each.scheme for each in left.connectors] == ["wss"]


def test_tables_of_mqtt_and_websocket_have_bounds(file: Callable[[str], str]) -> None:
    settings = load(file("[mqtt]\nmax_session_expiry_interval = '1h'\n[websocket]\nping_interval = 0"), {})
    assert (settings.mqtt.max_session_expiry_interval, settings.websocket.ping_interval) == (3_600_000, 0)
    for override, expected in (
        ("mqtt.receive_maximum=65536", "at most 65535"),
        ("mqtt.receive_maximum=0", "at least 1"),
        ("websocket.allowed_origins=shop.example", "origins like"),
        ("websocket.allowed_origins=https://a/path", "origins like"),
    ):
        with pytest.raises(SettingsError, match=expected):
            load(None, {}, [override])
    assert load(None, {}, ["websocket.allowed_origins=https://A:1,null,*"]).websocket.allowed_origins == (
        "https://a:1",
        "null",
        "*",
    )


def test_a_connector_that_is_off_is_left_out(file: Callable[[str], str]) -> None:
    assert load(file("[[connectors]]\nuri = 'off'"), {}).connectors == ()


def test_options_of_foreign_locks_are_handed_on(file: Callable[[str], str]) -> None:
    path = file("[locker]\ntype = 'mine'\n[locker.options]\nurl = 'x'")
    settings = load(path, {"TANDEMMQ_LOCKER__OPTIONS__USER": "u"}, ["locker.options.token=t"])
    assert settings.locker.options == {"url": "x", "user": "u", "token": "t"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[store]\ncheckpoint_interval = 'soon'", "store.checkpoint_interval = 'soon' (from FILE): expected a time"),
        (
            "[store]\njournal_max_file_length = 1",
            "store.journal_max_file_length = 1 (from FILE): expected at least 65536",
        ),
        ("[store]\njournal_max_file_length = '4gb'", "expected at most 2147483647"),
        ("[store]\ncheckpoint_records = true", "store.checkpoint_records = True (from FILE): expected a whole number"),
        ("[store]\njournal_disk_sync_strategy = 'maybe'", 'expected "always", "periodic" or "never"'),
        ("[admin]\nadvertised = 'one:0'", "admin.advertised = 'one:0' (from FILE): expected HOST:PORT, as others"),
        ("[[connectors]]\nuri = 'stomp://h:1'\nadvertised = 'one'", "connectors[0].advertised = 'one'"),
        ("[logging]\nlevel = 'loud'", "logging.level = 'loud' (from FILE): expected "),
        ("[logging]\ntarget = 'file'", "both of file = "),
        ("[logging]\nloggers = {store = 'loud'}", "logging.loggers.store = 'loud' (from FILE): expected "),
        ("[logging.loggers]\n'a b' = 'info'", "names of loggers like "),
        ("[store]\ndirectory = 5", "store.directory = 5 (from FILE): expected text"),
        ("[store]\ndirectory = ''", "store.directory = '' (from FILE): expected a path"),
        ("[broker]\nstomp_nack = 'drop'", 'broker.stomp_nack = \'drop\' (from FILE): expected "dlq" or "requeue"'),
        ("[broker]\nname = 'a/b'", "broker.name = 'a/b' (from FILE): expected a name of letters"),
        (
            "[broker]\nmaximum_redeliveries = -1",
            "broker.maximum_redeliveries = -1 (from FILE): expected a whole number",
        ),
        ("[locker]\nuse_lock = 'perhaps'", "locker.use_lock = 'perhaps' (from FILE): expected true or false"),
        ("[locker]\ntype = 'mine'\noptions = 3", "locker.options = 3 (from FILE): expected a table"),
        ("[locker]\ntype = 'mine'\n[locker.options]\na = 3", "locker.options.a = 3 (from FILE): expected text"),
        ("[admin]\nuri = 'x'", "admin.uri = 'x' (from FILE): expected a URI"),
        ("[admin]\nmetrics_destinations = ['a..b']", "admin.metrics_destinations"),
        ("[admin]\nconnections_max = 0", "admin.connections_max = 0 (from FILE): expected at least 1"),
        ("[admin]\nconnections_max = 1001", "admin.connections_max = 1001 (from FILE): expected at most 1000"),
        ("[admin]\nrequest_timeout = '1ms'", "admin.request_timeout = '1ms' (from FILE): expected at least 100"),
        ("[admin]\nresponse_timeout = 'never'", "admin.response_timeout = 'never' (from FILE): expected a time"),
        ("[admin]\nanswer_size_max = '1kb'", "admin.answer_size_max = '1kb' (from FILE): expected at least 65536"),
        ("[tracing]\nendpoint = 'x'", "tracing.endpoint = 'x' (from FILE): expected \"off\", or the URL of a coll"),
        ("[tracing]\nratio = 1.5", "tracing.ratio = 1.5 (from FILE): expected a number from 0 to 1"),
        ("store = 3", "store = 3 (from FILE): expected a table, [store]"),
        ("connectors = 3", "connectors = 3 (from FILE): expected a list of tables, [[connectors]]"),
        ("[[connectors]]\nuri = 'auto://h:1'", "connectors[0].uri = 'auto://h:1' (from FILE): expected a connector"),
        ("[[connectors]]\nname = 'x'", "connectors[0].uri"),
        ("[store]\njournalMaxFileLength = 1", "there is no such setting. Did you mean store.journal_max_file_"),
        ("[store]\nzzz = 1", "store.zzz (from FILE): there is no such setting."),
        ("[stoer]\nx = 1", "stoer (from FILE): there is no such setting. Did you mean store?"),
        ("[[connectors]]\nuri = 'stomp://h:1'\nurl = 'x'", "connectors[0].url (from FILE): there is no such setting."),
        ("[store", "the settings file is not TOML"),
    ],
)
def test_a_wrong_file_says_key_value_and_what_was_expected(
    file: Callable[[str], str], text: str, expected: str
) -> None:
    path = file(text)
    with pytest.raises(SettingsError) as failure:
        load(path, {})
    assert expected in str(failure.value).replace(path, "FILE")


def test_an_unknown_key_is_its_own_error() -> None:
    with pytest.raises(UnknownSetting) as failure:
        load(None, {}, ["store.directry=x"])
    wrong = failure.value
    assert (wrong.key, wrong.near, wrong.source) == ("store.directry", "store.directory", "--set")


@pytest.mark.parametrize(
    ("environment", "overrides", "expected"),
    [
        ({"TANDEMMQ_STORE__CHECKPOINT_RECORDS": "0"}, [], "(from environment TANDEMMQ_STORE__CHECKPOINT_RECORDS)"),
        ({"TANDEMMQ_STROE__X": "0"}, [], "Did you mean store?"),
        ({"TANDEMMQ_CONNECTORS__URI": "x"}, [], "connectors in the file, or by --stomp"),
        ({}, ["nonsense"], "--set = 'nonsense': expected section.key=value"),
        ({}, ["x=1"], "expected section.key=value"),
        ({}, ["store.directory.deep=1", "store.directory=1", "store.directory.deep=1"], "to be a table"),
    ],
)
def test_a_wrong_value_elsewhere_says_where(environment: dict[str, str], overrides: list[str], expected: str) -> None:
    with pytest.raises(SettingsError) as failure:
        load(None, environment, overrides)
    assert expected in str(failure.value)


@pytest.mark.parametrize(
    "flags", [Flags(stomp="x"), Flags(admin="x"), Flags(admin="http://h:1"), Flags(name=""), Flags(data="")]
)
def test_a_wrong_option_is_refused(flags: Flags) -> None:
    with pytest.raises(SettingsError):
        load(None, {}, flags=flags)


@pytest.mark.parametrize(
    ("name", "why"),
    [("none.toml", "cannot be read: No such file"), ("bytes", "is not TOML"), ("/dev/zero", "has at most 1mb")],
)
def test_a_file_that_is_no_settings_file_is_refused(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=why):
        load(tmp_path / name, {})


def test_an_endless_value_is_not_printed_whole() -> None:
    with pytest.raises(SettingsError) as failure:
        load(None, {}, [f"store.checkpoint_interval={'x' * 10_000}"])
    assert len(str(failure.value)) < 300


@pytest.mark.parametrize(
    ("overrides", "flags"),
    [
        ([], Flags()),
        (
            ["store.checkpoint_interval=1234", "locker.type=mine", 'locker.options.a b="c\\d\x7f\n'],
            Flags(data='d"\\', stomp="h:1"),
        ),
        (["store.index_directory=/fast"], Flags(stomp="off", admin="off")),
        (["logging.loggers.broker.net=debug", "logging.loggers.store=error", "logging.format=JSON"], Flags()),
    ],
)
def test_shown_settings_can_be_loaded_again(file: Callable[[str], str], overrides: list[str], flags: Flags) -> None:
    settings = load(None, {}, overrides, flags)
    assert load(file(show(settings)), {}).model_dump() == settings.model_dump()


def test_the_example_is_right_and_says_the_defaults() -> None:
    path = ROOT / "examples" / "tandemmq.toml"
    lines, defaults = load(path, {}).model_dump(), load(None, {}).model_dump()
    lines["store"]["directory"] = defaults["store"]["directory"]
    for section in ("broker", "store", "locker"):
        assert lines[section] == defaults[section]
    written = tomllib.loads(path.read_text())
    assert set(written) == set(Settings.model_fields) - {"replication", "bridges"}  # these have separate examples


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_every_example_is_right(example: Path) -> None:
    assert load(example, {}).store.directory == "/var/lib/tandemmq"
