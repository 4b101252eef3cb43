"""The Lease of Kubernetes, at a stand-in of its API over real HTTPS."""

# proves: kubernetes-lock

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from tandemmq.bench.peers.ports import free_port
from tandemmq.locker.contract import Holder, Locker, LockRefused, LockRequest, LockSettingsError, LockUnavailable
from tandemmq.locker.kubernetes.api import Lease, LeaseApi, micro_time
from tandemmq.locker.kubernetes.lease import KubernetesLeaseLocker, KubernetesSettings, encode, holder_in
from tests.contract.locker.test_contract import Leased, OutOfReach, Refusing
from tests.support.locker.interleaved import InterleavedLease
from tests.support.locker.manual_clock import ManualClock
from tests.support.locker.pair import assert_the_standby_follows, running_pair
from tests.support.locker.steps import Stepping
from tests.support.prove import IS_PROOF, IS_THOROUGH
from tests.support.services.kubernetes_api import KubernetesApi, make_certificate
from tests.support.services.proxy import Proxy

pytestmark = pytest.mark.promise("locks-keep-their-contract")

NAME = "orders"
Build = Callable[..., KubernetesLeaseLocker]
RequestFor = Callable[..., LockRequest]


@pytest.fixture(scope="module")
def certificate(
    require_program: Callable[[object, str], None], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    require_program(shutil.which("openssl"), "no openssl to make a certificate with")
    made = tmp_path_factory.mktemp("certificate")
    make_certificate(made / "ca.crt", made / "key")
    return made / "ca.crt", made / "key"


@pytest.fixture
def api(certificate: tuple[Path, Path], tmp_path: Path) -> Iterator[KubernetesApi]:
    account = tmp_path / "account"
    account.mkdir()
    running = KubernetesApi(account, *certificate)
    yield running
    running.close()


def options_of(api: KubernetesApi) -> dict[str, object]:
    return {
        "server": api.server,
        "lease": NAME,
        "token_file": str(api.token_file),
        "ca_file": str(api.ca_file),
        "request_timeout": 1_000,
    }


@pytest.fixture
def build(api: KubernetesApi, request_for: RequestFor) -> Iterator[Build]:
    """Lockers on one Lease, by broker name, clock and options. A Lease is 10 s long."""
    built: list[KubernetesLeaseLocker] = []

    def make(name: str, clock: ManualClock | None = None, **options: object) -> KubernetesLeaseLocker:
        asked = request_for(name, lock_acquire_sleep_interval_seconds=10.0)
        asked = replace(asked, options={**options_of(api), **options})
        built.append(KubernetesLeaseLocker(asked if clock is None else replace(asked, clock=clock)))
        return built[-1]

    yield make
    for locker in built:
        locker.release()


class _Direct(LeaseApi):
    """Without the wire: a schedule makes thousands of requests."""

    api: KubernetesApi

    def _ask(self, verb: str, path: str, lease: Lease | None, seconds_max: float) -> tuple[int, dict[str, Any]]:
        body = json.dumps(lease.content).encode() if lease is not None else b""
        return self.api.answer(verb, path, f"Bearer {self.api.token}", body)


class _SteppedLocker(KubernetesLeaseLocker):
    """Stands still before each request to the server."""

    def _open(self) -> LeaseApi:
        direct = _Direct(self.where, "https://-", KubernetesApi.namespace, self._kubernetes.lease, "", "")
        return Stepping(direct, {"read", "create", "replace"})  # type: ignore[return-value]


class TestContract(Leased, OutOfReach, Refusing, InterleavedLease):
    factory = "tandemmq.locker.kubernetes.lease:KubernetesLeaseLocker"
    settings: ClassVar = {"lock_acquire_sleep_interval_seconds": 5.0}
    short: ClassVar = {"lock_acquire_sleep_interval_seconds": 1.0, "lock_keep_alive_period_seconds": 0.1}
    switches_of_time_max = 4 if IS_PROOF else 3 if IS_THOROUGH else 1
    polls_of_time = 2

    @pytest.fixture(autouse=True)
    def _api(self, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = api
        monkeypatch.setattr(_Direct, "api", api, raising=False)

    def options(self) -> dict[str, object]:
        return options_of(self.api)

    def stepped(self, request: LockRequest) -> Locker:
        return _SteppedLocker(request)

    def anew(self) -> None:
        self.api.leases.clear()

    def steal(self, locker: Locker) -> None:
        self.api.give_to(NAME, "")

    @contextmanager
    def out_of_reach(self, locker: Locker) -> Iterator[None]:
        with self.api.paused():
            yield

    def refused(self, request: LockRequest) -> Locker:
        self.api.token = "another"
        return KubernetesLeaseLocker(request)


# Content of the Lease


def test_the_lease_says_what_every_tool_of_kubernetes_reads(api: KubernetesApi, build: Build) -> None:
    a, b = build("a"), build("b")
    assert a.try_acquire()
    spec = dict(api.leases[NAME]["spec"])
    assert spec["holderIdentity"].startswith("a_")
    assert spec["leaseDurationSeconds"] == 10
    assert spec["leaseTransitions"] == 0
    assert spec["acquireTime"] == spec["renewTime"]
    assert a.keep_alive()
    renewed = api.leases[NAME]["spec"]
    assert renewed["renewTime"] > spec["renewTime"]
    assert {**renewed, "renewTime": None} == {**spec, "renewTime": None}
    a.release()
    freed = api.leases[NAME]["spec"]
    assert (freed["holderIdentity"], freed["leaseDurationSeconds"], freed["leaseTransitions"]) == ("", 1, 0)
    assert api.leases[NAME]["metadata"]["annotations"] == {}
    assert b.try_acquire()
    assert api.leases[NAME]["spec"]["leaseTransitions"] == 1


def test_what_others_wrote_beside_is_kept(api: KubernetesApi, build: Build) -> None:
    a = build("a")
    assert a.try_acquire()
    api.label(NAME, "team", "orders")
    # The label made a new version: a conflict, looked into, and ours all the same.
    assert a.keep_alive()
    a.announce(3)
    a.release()
    assert api.leases[NAME]["metadata"]["labels"] == {"team": "orders"}


def test_a_leader_elected_by_other_means_is_named_by_its_identity(api: KubernetesApi, build: Build) -> None:
    a, b = build("a"), build("b")
    assert a.try_acquire()
    api.give_to(NAME, "controller-7d9f_0b1c")
    assert not b.try_acquire()
    assert b.holder() == Holder("controller-7d9f_0b1c")
    assert not a.keep_alive()


# Time


def test_a_lease_is_taken_when_it_was_seen_unchanged_for_its_length(build: Build) -> None:
    ours, theirs = ManualClock(), ManualClock(5_000_000.0)
    a, b = build("a", ours), build("b", theirs)
    assert a.try_acquire()
    assert not b.try_acquire()
    theirs.advance(9.0)
    assert a.keep_alive()
    assert not b.try_acquire()
    theirs.advance(10.0)
    assert b.holder() is not None
    assert not b.try_acquire()
    theirs.advance(0.1)
    assert b.holder() is None
    assert b.try_acquire()
    assert not a.keep_alive()


def test_clocks_that_were_set_change_nothing(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = build("a", ManualClock()), build("b", ManualClock())
    with monkeypatch.context() as an_hour_back:
        an_hour_back.setattr("tandemmq.locker.kubernetes.lease.time.time", lambda: 0.0)
        assert a.try_acquire()
        assert not b.try_acquire()
        assert a.keep_alive()
    assert not b.try_acquire()
    assert a.keep_alive()


def test_our_own_lease_that_nobody_took_is_still_ours_when_it_ended(build: Build) -> None:
    clock = ManualClock()
    a = build("a", clock)
    assert a.try_acquire()
    clock.advance(100.0)
    assert not a.proof().holds_at(clock.now())
    # The version shows that no other broker had it since.
    assert a.keep_alive()
    assert a.proof().holds_at(clock.now())


def test_an_interval_is_rounded_up_to_whole_seconds(request_for: RequestFor, api: KubernetesApi) -> None:
    asked = request_for("a", lock_acquire_sleep_interval_seconds=2.5)
    locker = KubernetesLeaseLocker(replace(asked, options=options_of(api)))
    assert locker.lease_seconds == 3.0


# Answers that are lost, slow or no


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_try_whose_answer_was_lost_is_found_to_be_ours(api: KubernetesApi, build: Build, method: str) -> None:
    a, b = build("a"), build("b")
    if method == "PUT":
        assert b.try_acquire()
        b.release()
    api.loses_replies_to = {method}
    with pytest.raises(LockUnavailable):
        a.try_acquire()
    api.loses_replies_to = set()
    assert not b.try_acquire()
    assert a.try_acquire()
    assert a.keep_alive()
    assert not b.try_acquire()


def test_a_try_whose_answer_was_lost_is_let_go_by_release(api: KubernetesApi, build: Build) -> None:
    a, b = build("a"), build("b")
    api.loses_replies_to = {"POST"}
    with pytest.raises(LockUnavailable):
        a.try_acquire()
    api.loses_replies_to = set()
    a.release()
    assert b.try_acquire()


def test_a_release_that_did_not_reach_the_server_is_made_up_for(api: KubernetesApi, build: Build) -> None:
    a, b = build("a"), build("b")
    assert a.try_acquire()
    with api.failing(503):
        a.release()
    assert not b.try_acquire()
    assert a.try_acquire()
    with api.failing(503):
        a.release()
    api.give_to(NAME, "b_1")
    assert not a.try_acquire()


def test_a_renewal_whose_answer_was_lost_is_no_loss(api: KubernetesApi, build: Build) -> None:
    a = build("a")
    assert a.try_acquire()
    api.loses_replies_to = {"PUT"}
    with pytest.raises(LockUnavailable):
        a.keep_alive()
    api.loses_replies_to = set()
    assert a.keep_alive()


def test_a_proof_counts_from_before_the_server_was_asked(api: KubernetesApi, build: Build) -> None:
    clock = ManualClock()
    proxy = Proxy(urlsplit(api.server).port or 0, asked=lambda: clock.advance(1.0))
    try:
        a = build("a", clock, server=f"https://127.0.0.1:{proxy.port}")
        assert a.try_acquire()
        assert a.proof().known_at_seconds <= clock.now() - 1.0
        asked_at = clock.now()
        assert a.keep_alive()
        assert a.proof().known_at_seconds == asked_at < clock.now()
    finally:
        proxy.close()


def test_what_was_changed_since_it_was_read_is_not_written_over(api: KubernetesApi, build: Build) -> None:
    """Two standbys find the Lease at its end, and both write."""
    clock = ManualClock()
    a, b = build("a", clock), build("b", clock)
    assert a.try_acquire()
    assert not b.try_acquire()
    clock.advance(11.0)
    found = b._api.read(1.0)
    assert found is not None
    api.give_to(NAME, "c_1")
    assert not b._take(found, is_new=False)
    assert not b.proof().holds_at(clock.now())
    assert api.leases[NAME]["spec"]["holderIdentity"] == "c_1"


def test_a_lease_that_was_deleted_is_lost(api: KubernetesApi, build: Build) -> None:
    a, b = build("a"), build("b")
    assert a.try_acquire()
    del api.leases[NAME]
    assert not a.keep_alive()
    assert b.try_acquire()
    assert not a.keep_alive()


# proves: kubernetes-renews-what-it-took
def test_a_lease_that_was_made_anew_with_our_name_in_it_is_lost(
    api: KubernetesApi, build: Callable[..., KubernetesLeaseLocker]
) -> None:
    """`kubectl apply` of a saved object, after another broker had the lock."""
    a, b = build("a"), build("b")
    assert a.try_acquire()
    saved = deepcopy(api.leases.pop(NAME))
    assert b.try_acquire()
    saved["metadata"]["uid"] = "another"
    api.leases[NAME] = saved
    api.label(NAME, "restored", "yes")
    assert not a.keep_alive()
    assert not b.keep_alive()


@pytest.mark.parametrize("code", [429, 500, 503, 504])
def test_a_server_in_trouble_is_unknown(api: KubernetesApi, build: Build, code: int) -> None:
    a = build("a")
    assert a.try_acquire()
    with api.failing(code), pytest.raises(LockUnavailable, match=f"is unavailable: {code}, an error on the server"):
        a.keep_alive()
    assert a.keep_alive()


@pytest.mark.parametrize(
    ("options", "match", "number"),
    [
        ({"request_timeout": 100}, r"no answer within 0\.1 s", errno.ETIMEDOUT),
        ({"server": f"https://127.0.0.1:{free_port()}"}, "Connection refused", errno.ECONNREFUSED),
        ({"token_file": "/no/such/token", "namespace": "tests"}, "No such file", errno.ENOENT),
    ],
)
def test_what_cannot_be_asked_is_said_with_errno(
    api: KubernetesApi, build: Build, options: dict[str, object], match: str, number: int
) -> None:
    with api.paused(), pytest.raises(LockUnavailable, match=match) as failure:
        build("a", **options).acquire(threading.Event())
    assert failure.value.errno == number


@pytest.mark.thorough
def test_a_pair_of_brokers_elects_by_it(api: KubernetesApi, tmp_path: Path) -> None:
    options = {"type": "kubernetes-lease", **{f"kubernetes.{key}": value for key, value in options_of(api).items()}}
    with running_pair(tmp_path / "data", *(f"--set=locker.{key}={value}" for key, value in options.items())) as pair:
        assert_the_standby_follows(*pair)


# Rights


@pytest.mark.parametrize("missing", ["get", "create"])
def test_an_account_without_rights_is_refused(api: KubernetesApi, build: Build, missing: str) -> None:
    api.may -= {missing}
    with pytest.raises(LockRefused, match=rf"refuses this broker: 403, .* cannot {missing} resource"):
        build("a").acquire(threading.Event())


def test_a_namespace_that_is_not_there_is_refused(build: Build) -> None:
    with pytest.raises(LockRefused, match='namespaces "elsewhere" not found'):
        build("a", namespace="elsewhere").acquire(threading.Event())


def test_a_master_whose_rights_were_taken_away_does_not_know_whether_it_lost(api: KubernetesApi, build: Build) -> None:
    a = build("a")
    assert a.try_acquire()
    api.may -= {"update"}
    with pytest.raises(LockUnavailable, match="403"):
        a.keep_alive()


def test_a_new_token_is_read_from_its_file(api: KubernetesApi, build: Build) -> None:
    a = build("a")
    assert a.try_acquire()
    api.token = "another"
    api.token_file.write_text(api.token)
    assert a.keep_alive()
    api.token_file.write_text("")  # as during a rewrite
    assert a.keep_alive()


def test_a_server_that_is_another_is_not_trusted(build: Build, tmp_path: Path) -> None:
    make_certificate(tmp_path / "other.crt", tmp_path / "other.key")
    with pytest.raises(LockRefused, match=r"cannot be trusted: .*; is .*other\.crt its authority"):
        build("a", ca_file=str(tmp_path / "other.crt")).acquire(threading.Event())


# Settings


def test_a_pod_finds_in_itself_what_was_not_said(request_for: RequestFor, api: KubernetesApi) -> None:
    asked = replace(request_for("a"), options={"token_file": str(api.token_file)})
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    settings = KubernetesSettings.of(asked, environment)
    assert (settings.server, settings.namespace, settings.lease) == ("https://10.0.0.1:6443", "tests", "tandemmq")
    assert settings.ca_file == "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    settings = KubernetesSettings.of(asked, {"KUBERNETES_SERVICE_HOST": "fd00::1"})
    assert settings.server == "https://[fd00::1]:443"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"namespace": "n"}, "kubernetes.server"),
        ({"server": "https://h"}, "kubernetes.namespace"),
        ({"server": "http://h", "namespace": "n"}, "kubernetes.server"),
        ({"server": "https://h", "namespace": "n", "request_timeout": "soon"}, "kubernetes.request_timeout"),
        ({"server": "https://h", "namespace": "n", "name": "x"}, "kubernetes.name"),
    ],
)
def test_settings_that_cannot_be_meant_are_named(
    request_for: RequestFor, options: dict[str, object], key: str, tmp_path: Path
) -> None:
    asked = replace(request_for("a"), options={"token_file": str(tmp_path / "token"), **options})
    with pytest.raises(LockSettingsError) as failure:
        KubernetesSettings.of(asked, {})
    assert failure.value.key == key


def test_times_are_micro_times() -> None:
    assert micro_time(0.0) == "1970-01-01T00:00:00.000000Z"
    assert micro_time(1_700_000_000.25) == "2023-11-14T22:13:20.250000Z"


def test_a_line_that_a_former_holder_left_names_nobody() -> None:
    line = encode(Holder("a", 3), "a_1")
    lease = Lease({}).changed(line, holderIdentity="a_1")
    assert holder_in(lease) == Holder("a", 3)
    assert holder_in(lease.changed(line, holderIdentity="b_2")) == Holder("b_2")
    assert holder_in(lease.changed(line, holderIdentity="")) is None
    assert holder_in(lease.changed("[]", holderIdentity="b_2")) == Holder("b_2")
