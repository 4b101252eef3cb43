"""The console in a real browser, with a real pair of brokers: clicks and keys."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.support.acceptance.broker_process import BrokerProcess, serving, wait_until
from tests.support.acceptance.console_broker import HOSTILE, ConsoleBroker, Letters
from tests.support.services.browser import NETWORK_CHANGED, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.service

WIDE, NARROW = (1600, 1000), (390, 844)
FIRST_PAGE_BYTES_MAX = 200_000
STRANGE_QUEUE = f"queue/{quote(HOSTILE, safe='')}"
PAGES = (
    "overview", "queues", "topics", "dead-letters", "connections", "consumers", "producers", "events", "tasks", "users",
    "queue/ORDERS", f"queue/{Letters.DEAD}", STRANGE_QUEUE,
)  # fmt: skip
# Reports of the browser about a page that breaks its policy.
_NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event => violations.push(event.violatedDirective));
"""


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    """Clients of the broker run there: the browser's own loop has this thread."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture(scope="module")
def pair(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ConsoleBroker, ...]]:
    directory = tmp_path_factory.mktemp("console")
    with serving(*(ConsoleBroker(directory, name) for name in ("one", "two"))) as pair:
        yield pair


@pytest.fixture(scope="module")
def broker(pair: tuple[ConsoleBroker, ConsoleBroker], threads: ThreadPoolExecutor) -> ConsoleBroker:
    threads.submit(asyncio.run, Letters(pair[0].stomp).write()).result(60)
    return pair[0]


Shown = Callable[..., "Page"]


@pytest.fixture
def shown(browser: Browser, broker: ConsoleBroker) -> Iterator[Shown]:
    """``shown(user, page)``: a window in which the user is logged in, on that page of the master. What a window
    complains about fails the test, but for what is asked for with ``expects``: a part of a complaint."""
    complaints: list[str] = []
    expected: list[str] = []
    contexts = []

    def show(
        user: str | None = "ada",
        page: str = "overview",
        *,
        size: tuple[int, int] = WIDE,
        scheme: Any = "light",
        of: BrokerProcess = broker,
        expects: str | None = None,
    ) -> Page:
        home = f"http://127.0.0.1:{of.admin}/"
        expected.extend(filter(None, [expects]))
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        contexts.append(context)
        window = context.new_page()
        window.add_init_script(_NOTE_VIOLATIONS)
        # Other tests make networks at the same time; the page repeats the request.
        window.on(
            "console",
            lambda message: NETWORK_CHANGED in message.text or complaints.append(f"{message.type}: {message.text}"),
        )
        window.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        window.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        window.on("request", lambda request: request.url.startswith(home) or complaints.append(request.url))
        visit(window, home)
        if user is not None:
            log_in(window, user)
            window.goto(f"{home}#/{page}")
        return window

    yield show
    for context in contexts:
        for window in context.pages:
            complaints += window.evaluate("window.violations ?? []")
        context.close()
    assert not [each for each in complaints if not any(part in each for part in expected)]


def log_in(window: Page, user: str, password: str | None = None) -> None:
    window.get_by_label("User").fill(user)
    window.get_by_label("Password").fill(password or f"{user} secret")
    window.get_by_role("button", name="Log in", exact=True).click()
    if password is None:
        window.get_by_text(re.compile(rf"^{user} \(")).wait_for()


def rows(window: Page, table: str) -> Any:
    return window.get_by_role("table", name=table).locator("tbody tr")


def messages_of(broker: ConsoleBroker, queue: str) -> int | None:
    status = broker.status() or {}
    return next((each["messages"] for each in status.get("queues", ()) if each["name"] == queue), None)


def with_text(window: Page, text: str | re.Pattern[str]) -> None:
    """Wait until the result is shown where screen readers announce it."""
    window.locator("#said").get_by_text(text).first.wait_for()


# ---- logins


def test_a_user_logs_in_and_out(shown: Shown) -> None:
    window = shown(None)
    log_in(window, "vera")
    assert window.get_by_role("heading", level=1).inner_text() == "Overview"
    window.reload()
    window.get_by_text("vera (viewer)").wait_for()
    window.get_by_role("button", name="Log out").click()
    window.get_by_label("User").wait_for()
    assert window.get_by_role("navigation").count() == 0
    window.reload()
    window.get_by_label("User").wait_for()


@pytest.mark.parametrize("part", ["/console/**", "/console/parts.js", "/console/console.css", "/api/v1/session"])
def test_what_did_not_come_is_asked_for_again(shown: Shown, part: str) -> None:
    """The case occurs if the broker ends, or the network changes, while the page is being loaded."""
    window = shown(None, expects="Failed to load resource")
    window.route(f"**{part}", lambda route: route.abort("connectionreset"))
    with window.expect_event("requestfailed"):
        window.reload()
    window.unroute(f"**{part}")
    window.get_by_label("User").wait_for()


def test_a_page_that_was_half_loaded_waits_for_its_broker(shown: Shown) -> None:
    window = shown(None, expects="Failed to load resource")
    window.route("**/console/app.js", lambda route: route.abort("connectionreset"))
    window.reload()
    window.route("**/", lambda route: route.abort("connectionrefused"))
    window.get_by_text("This broker does not answer. The console is loaded when it does.").wait_for()
    window.unroute_all()
    window.get_by_label("User").wait_for()


def test_who_says_a_wrong_password_is_told(shown: Shown) -> None:
    window = shown(None, expects="401")
    log_in(window, "ada", "a guess")
    window.get_by_role("alert").get_by_text("the name, the passcode or the admin token is wrong").wait_for()
    assert window.get_by_label("User").input_value() == "ada"
    log_in(window, "ada")


def test_without_users_everybody_looks_and_the_token_does_the_rest(shown: Shown, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "open").start()
    try:
        broker.wait_role("master")
        window = shown(None, of=broker)
        window.get_by_text("anybody (viewer)").wait_for()
        window.get_by_role("link", name="Queues").click()
        window.get_by_text("No matching queue").wait_for()
        assert window.get_by_role("button", name="Create a queue…").count() == 0
        window.get_by_role("link", name="Log in").click()
        window.get_by_label("Admin token").fill(broker.authorization["Authorization"].removeprefix("Bearer "))
        window.get_by_role("button", name="Log in with the token").click()
        window.get_by_text("admin token (admin)").wait_for()
        assert window.get_by_role("heading", level=1).inner_text() == "Overview"
        window.get_by_role("button", name="Log out").click()
        window.get_by_text("anybody (viewer)").wait_for()
        window.goto("about:blank")  # it sends no requests any more
    finally:
        broker.stop()


def test_a_session_that_ended_leads_to_the_login(shown: Shown) -> None:
    window = shown("otto", "queues", expects="401")
    rows(window, "Queues").first.wait_for()
    window.context.clear_cookies()
    window.get_by_label("User").wait_for()


@pytest.mark.parametrize(
    ("user", "pages", "has_work", "has_closing"),
    [("vera", 8, False, False), ("otto", 9, True, False), ("ada", 10, True, True)],
)
def test_only_what_a_role_may_do_is_offered(
    shown: Shown, user: str, pages: int, has_work: bool, has_closing: bool
) -> None:
    window = shown(user, "queues")
    rows(window, "Queues").first.wait_for()
    assert window.get_by_role("navigation").get_by_role("link").count() == pages
    assert (window.get_by_role("button", name="Create a queue…").count() == 1) is has_work
    window.get_by_role("link", name="ORDERS", exact=True).click()
    window.get_by_text("In flight").wait_for()
    assert (window.get_by_role("button", name="Purge…").count() == 1) is has_work
    assert (window.get_by_role("table", name="Messages of ORDERS").count() == 1) is has_work
    window.get_by_role("link", name="Overview").click()
    window.get_by_role("heading", name="This broker", exact=True).wait_for()
    assert (window.get_by_role("button", name="Hand over…").count() == 1) is has_closing


# ---- every page


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_a_page_loads_fits_and_can_be_read_by_all(shown: Shown, page: str, size: tuple[int, int], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    window = shown("ada", page, size=size, scheme=scheme)
    window.wait_for_load_state("networkidle")
    assert window.get_by_role("heading", level=1).count() == 1
    window.get_by_text("this broker does not answer").first.wait_for(state="detached")  # when the network changed
    assert window.locator("p.problem:visible").count() == 0
    assert window.evaluate("document.scrollingElement.scrollWidth") <= size[0], "what is wide scrolls by itself"
    results = axe.Axe().run(window)
    found = results.response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert not serious, results.generate_report()


def test_the_first_page_is_small(broker: ConsoleBroker, browser: Browser) -> None:
    """Of a browser that has nothing yet. `pytest -s` shows how long it took."""
    with browser.new_context() as context:
        window = context.new_page()
        answers = []
        window.on("response", lambda answer: answers.append(answer))
        window.goto(f"http://127.0.0.1:{broker.admin}/", wait_until="networkidle")
        window.get_by_label("User").wait_for()
        sizes = [each.request.sizes() for each in answers]
        size = sum(each["responseBodySize"] + each["responseHeadersSize"] for each in sizes)
        loaded = window.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
        print(f"\nfirst page: {len(answers)} answers, {size} bytes, loaded after {loaded:.0f} ms")
    assert 50_000 < size < FIRST_PAGE_BYTES_MAX


def test_what_clients_sent_is_text(shown: Shown) -> None:
    """Names, headers, properties and bodies."""
    window = shown("ada", "queues")
    window.get_by_role("link", name=HOSTILE).click()
    window.get_by_role("heading", level=1, name=HOSTILE).wait_for()
    messages = rows(window, f"Messages of {HOSTILE}")
    messages.first.wait_for()
    assert HOSTILE in messages.first.inner_text()
    messages.first.get_by_role("link").click()
    window.locator("pre").wait_for()
    assert window.locator("pre").inner_text() == f"{HOSTILE} number 0"
    (found,) = [row for row in rows(window, "Properties").all_inner_texts() if "img" in row]
    assert found.split("\t") == [HOSTILE, HOSTILE]
    assert window.locator("img").count() == 0


@pytest.mark.parametrize("name", ["..", "~..", "{x}", "a#y=1&z", "a+b%20c", "a/b", "__proto__"])
def test_a_queue_of_any_name_has_its_page(shown: Shown, name: str) -> None:
    window = shown("ada", "queues")
    window.get_by_role("button", name="Create a queue").click()
    window.get_by_label("Name", exact=True).fill(name)
    window.get_by_role("dialog").get_by_role("button", name="Create", exact=True).click()
    window.get_by_role("link", name=name, exact=True).click()
    window.get_by_role("heading", level=1, name=name, exact=True).wait_for()
    window.get_by_text("No message.").wait_for()


@pytest.mark.parametrize("word", ["__proto__", "constructor", "toString"])
def test_a_page_that_there_is_not_is_the_overview(shown: Shown, word: str) -> None:
    window = shown("ada", word)
    window.get_by_role("heading", level=1, name="Overview").wait_for()


# ---- work


def test_messages_are_found_by_a_selector_a_page_at_a_time(shown: Shown) -> None:
    window = shown("otto", "queue/ORDERS", expects="400")
    messages = rows(window, "Messages of ORDERS")
    messages.nth(49).wait_for()
    window.get_by_role("button", name="Next page").click()
    messages.filter(has_text="number 50").wait_for()
    assert messages.count() == Letters.ORDERS - 50
    window.get_by_label("Selector").fill("region = 'EU'")
    window.get_by_role("button", name="Browse").click()
    messages.nth(29).wait_for()
    assert messages.count() == Letters.ORDERS // 2
    window.get_by_label("Selector").fill("region = ")
    window.get_by_role("button", name="Browse").click()
    window.locator("#said").get_by_role("alert").wait_for()


def test_chosen_messages_are_moved_and_deleted(shown: Shown, broker: ConsoleBroker) -> None:
    window = shown("otto", "queue/ORDERS")
    messages = rows(window, "Messages of ORDERS")
    messages.nth(49).wait_for()
    before = messages_of(broker, "ORDERS")
    assert before is not None
    for number in (1, 2):
        window.get_by_label(f"Choose message {number}", exact=True).check()
    window.get_by_role("button", name="Move…").click()
    dialog = window.get_by_role("dialog")
    assert "Move 2 chosen messages" in dialog.inner_text()
    dialog.get_by_label("To", exact=True).fill("ORDERS.LATER")
    dialog.get_by_role("button", name="Move 2 messages").click()
    with_text(window, "2 moved")
    assert messages_of(broker, "ORDERS.LATER") == 2
    assert messages_of(broker, "ORDERS") == before - 2

    window.goto(f"http://127.0.0.1:{broker.admin}/#/queue/ORDERS.LATER")
    rows(window, "Messages of ORDERS.LATER").nth(1).wait_for()
    window.get_by_label("Apply to").select_option("all")
    window.get_by_role("button", name="Delete…").click()
    assert "all 2 messages are deleted for good" in window.get_by_role("dialog").inner_text()
    window.get_by_role("button", name="Cancel").click()
    assert messages_of(broker, "ORDERS.LATER") == 2
    window.get_by_role("button", name="Delete…").click()
    window.get_by_role("dialog").get_by_role("button", name="Delete 2 messages").click()
    with_text(window, "2 deleted")
    assert messages_of(broker, "ORDERS.LATER") == 0
    window.get_by_role("link", name="Tasks").click()
    rows(window, "Tasks of operators, the latest first").filter(has_text="2 moved").wait_for()


def test_a_queue_is_created_paused_purged_and_deleted(shown: Shown, broker: ConsoleBroker) -> None:
    window = shown("otto", "queues")
    window.get_by_role("button", name="Create a queue…").click()
    window.get_by_role("dialog").get_by_label("Name").fill("NEW")
    window.get_by_role("dialog").get_by_role("button", name="Create").click()
    window.get_by_role("link", name="NEW", exact=True).click()
    window.get_by_role("button", name="Pause consumers").click()
    window.get_by_role("button", name="Resume consumers").wait_for()
    assert window.get_by_text("consumers paused").first.is_visible()
    window.get_by_role("button", name="Resume consumers").click()
    window.get_by_role("button", name="Purge…").click()
    assert "All 0 messages" in window.get_by_role("dialog").inner_text()
    window.get_by_role("button", name="Delete 0 messages").click()
    with_text(window, re.compile("purge queue://NEW: done"))
    window.get_by_role("button", name="Delete the queue…").click()
    window.get_by_role("button", name="Delete it with 0 messages").click()
    window.get_by_role("heading", name="Queues", level=1).wait_for()
    assert messages_of(broker, "NEW") is None


@contextmanager
def consuming(threads: ThreadPoolExecutor, broker: ConsoleBroker, queue: str, answer: str) -> Iterator[list[str]]:
    """Consume and answer each message with ACK or NACK. Yield the consumed messages."""
    taken: list[str] = []
    is_over = threading.Event()

    async def consume() -> None:
        wire = await Letters(broker.stomp).open()
        wire.send("SUBSCRIBE", {"destination": f"/queue/{queue}", "id": "1", "ack": "client-individual"})
        while not is_over.is_set():
            try:
                async with asyncio.timeout(0.1):
                    frame = await wire.read()
            except TimeoutError:
                continue
            taken.append(frame.body.decode())
            wire.send(answer, {"id": frame.headers["ack"]})
        wire.close()

    work: Coroutine[Any, Any, None] = consume()
    running = threads.submit(asyncio.run, work)
    yield taken
    is_over.set()
    running.result(30)


def retry_all(window: Page) -> None:
    window.get_by_label("Apply to").select_option("all")
    window.get_by_role("button", name="Retry…").click()
    dialog = window.get_by_role("dialog")
    assert f"queue://BILLING: {Letters.DIED} messages" in dialog.inner_text()
    assert dialog.get_by_label("First one, then ten, then all").is_checked()
    dialog.get_by_role("button", name=f"Retry {Letters.DIED} messages").click()


def test_dead_letters_are_retried_by_a_canary(shown: Shown, broker: ConsoleBroker, threads: ThreadPoolExecutor) -> None:
    """Messages that become dead letters again stop it after one; messages that are consumed let all others follow."""
    window = shown("otto", "dead-letters")
    window.get_by_text(f"{Letters.DIED} dead letters in 1 queue").wait_for()
    window.get_by_role("link", name=Letters.DEAD).click()
    letters = rows(window, f"Messages of {Letters.DEAD}")
    letters.first.wait_for()
    assert "queue://BILLING" in letters.first.inner_text()
    assert "refused by NACK" in letters.first.inner_text()
    with consuming(threads, broker, "BILLING", "NACK") as taken:
        retry_all(window)
        with_text(window, re.compile("1 retried, 1 failed again"))
    assert len(taken) == 1
    assert messages_of(broker, Letters.DEAD) == Letters.DIED
    with consuming(threads, broker, "BILLING", "ACK") as taken:
        retry_all(window)
        with_text(window, re.compile(f"done – {Letters.DIED} retried"))
        wait_until(lambda: len(taken) == Letters.DIED, "all are consumed")
    assert messages_of(broker, Letters.DEAD) == 0


@contextmanager
def loafing(threads: ThreadPoolExecutor, broker: ConsoleBroker) -> Iterator[None]:
    """A consumer that is too slow, and a producer that has to wait."""
    are_there, is_over = threading.Event(), threading.Event()

    async def loaf() -> None:
        letters = Letters(broker.stomp)
        async with letters.slow_consumer():
            producer = await letters.blocked_producer()
            are_there.set()
            await asyncio.to_thread(is_over.wait)
            producer.close()

    running = threads.submit(asyncio.run, loaf())
    assert are_there.wait(30)
    yield
    is_over.set()
    running.result(30)


def test_who_is_slow_and_who_waits_is_told_with_the_reason_and_can_be_hung_up_on(
    shown: Shown, broker: ConsoleBroker, threads: ThreadPoolExecutor
) -> None:
    with loafing(threads, broker):
        window = shown("ada", "consumers")
        slow = rows(window, "Slow consumers").filter(has_text="queue://ORDERS")
        slow.wait_for()
        assert "it acknowledges too slowly: 3 deliveries" in slow.inner_text()
        window.get_by_role("link", name="Producers").click()
        blocked = rows(window, "Blocked producers").filter(has_text="queue://FULL")
        blocked.wait_for()
        assert "memory" in blocked.inner_text()
        window.get_by_role("link", name="Connections").click()
        lazy = rows(window, "Connections").filter(has_text="slow-reader")
        lazy.get_by_role("button").click()
        text = window.get_by_role("dialog").inner_text()
        assert "1 consumer" in text
        assert "3 messages that it has not acknowledged" in text
        window.get_by_role("button", name="Close the connection").click()
        lazy.wait_for(state="detached")


def test_all_of_it_works_by_keyboard(shown: Shown) -> None:
    window = shown("otto", "overview")
    window.get_by_role("heading", name="Overview", level=1).wait_for()

    def focused(what: str = "e => e.textContent || e.placeholder || e.id") -> str:
        return str(window.evaluate_handle("document.activeElement").evaluate(what))

    def tab_to(text: str, most: int = 60, key: str = "Tab") -> None:
        for _ in range(most):
            window.keyboard.press(key)
            if focused().startswith(text):
                outline = focused("e => getComputedStyle(e).outlineStyle + getComputedStyle(e).outlineWidth")
                assert outline not in ("none0px", "none3px"), f"{text} shows that it has the focus"
                return
        raise AssertionError(f"{text} was not reached by {most} tabs")

    tab_to("Skip to content", key="Shift+Tab")
    box = window.get_by_text("Skip to content").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    window.keyboard.press("Enter")
    assert focused("e => e.tagName") == "MAIN"
    window.keyboard.press("Shift+Tab")
    tab_to("Queues")
    window.keyboard.press("Enter")
    window.get_by_role("heading", name="Queues", level=1).wait_for()
    assert focused() == "Queues", "a reader begins at the page's heading"
    rows(window, "Queues").filter(has_text="ORDERS").first.wait_for()
    tab_to("ORDERS")
    window.keyboard.press("Enter")
    window.get_by_role("heading", name="ORDERS", level=1).wait_for()
    tab_to("Purge…")
    window.keyboard.press("Enter")
    window.get_by_role("dialog").wait_for()
    assert focused() == "Cancel", "what does no harm is first"
    window.keyboard.press("Escape")
    window.get_by_role("dialog").wait_for(state="detached")
    assert focused() == "Purge…"
    tab_to("all, or region")
    window.keyboard.type("region = 'US'")
    window.keyboard.press("Enter")
    rows(window, "Messages of ORDERS").first.wait_for()


# ---- both brokers


def test_a_standby_shows_itself_and_who_is_master(
    shown: Shown, pair: tuple[ConsoleBroker, ConsoleBroker], broker: ConsoleBroker
) -> None:
    window = shown("ada", "overview", of=pair[1])
    window.get_by_text("If the master fails now").wait_for()
    links = window.get_by_role("navigation").get_by_role("link").all_inner_texts()
    assert links == ["Overview", "Failover", "Users"]
    link = window.get_by_role("link", name=re.compile("^one "))
    assert link.first.get_attribute("href") == f"http://127.0.0.1:{broker.admin}"
    window.goto(f"http://127.0.0.1:{pair[1].admin}/#/queues")
    window.get_by_text("two is not master. Master: one").wait_for()
    window.get_by_role("link", name="Failover").click()
    rows(window, "Events, the latest first").filter(has_text="standby").first.wait_for()


def test_the_page_of_a_standby_becomes_that_of_a_master(
    shown: Shown, pair: tuple[ConsoleBroker, ConsoleBroker], broker: ConsoleBroker
) -> None:
    window = shown("ada", "overview", of=pair[1])
    window.get_by_text("If the master fails now").wait_for()
    broker.kill()
    pair[1].wait_role("master")
    window.get_by_role("link", name="Queues").click()
    rows(window, "Queues").filter(has_text="ORDERS").first.wait_for()
    window.get_by_role("link", name="Failover").click()
    rows(window, "Take-overs of this broker").first.wait_for()
