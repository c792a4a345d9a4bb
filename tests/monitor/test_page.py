"""The page over HTTP: the contents of each address, and permissions. See `test_in_a_browser`."""

from __future__ import annotations

import http.client
import itertools
import re
import time
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import lakequeue
import lakequeue.tasks
import pytest
from celery import Celery
from lakequeue.monitor.auth import FAILURES_MAX, FAILURES_S, SESSION_S, Auth
from lakequeue.monitor.charts import chart
from lakequeue.monitor.engine_figures import EngineFigures, quantile
from lakequeue.monitor.server import PageServer
from lakequeue.monitor.snapshot import VpnMonitor
from lakequeue.monitor.web import ROWS_MAX, Page, make_app
from monitor.cases import CASES, prepared, send

_names = itertools.count()
TOKEN = "a-token-of-some-length"
# without the syntax that makes it an expression
NASTY_QUEUE = """<script>alert'1'</script>"&/#%0d"""
NASTY = """<script>alert('1')</script>"&/?#%0d{{ 7*7 }}"""


class Served:
    """A served page, and requests to it."""

    def __init__(self, url: str, **options: Any) -> None:
        self.vpn_monitor = VpnMonitor(
            lambda: lakequeue.connect(url, client_name="monitor"), every_s=0
        )
        self.server = PageServer(
            make_app(Page({"default": self.vpn_monitor}, **options)), "127.0.0.1", 0
        )
        self.server.start()
        self.cookie = ""

    def ask(
        self, path: str, form: dict[str, str] | None = None, **headers: str
    ) -> tuple[int, str, dict[str, str]]:
        """Status, text and headers of one request."""
        connection = http.client.HTTPConnection(urlsplit(self.server.address).netloc, timeout=20)
        body = None if form is None else urlencode(form)
        sent = {"Cookie": self.cookie} if self.cookie else {}
        connection.request("GET" if form is None else "POST", path, body, sent | headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, dict(answer.getheaders())

    def get(self, path: str) -> str:
        status, text, _ = self.ask(path)
        assert status == 200, text
        return text

    def sign_in(self, token: str = TOKEN) -> int:
        status, _, headers = self.ask("/sign-in", {"token": token})
        self.cookie = headers.get("set-cookie", "").partition(";")[0]
        return status

    def word(self) -> str:
        """The secret in the form that redrives, which no other site's form can have."""
        (word,) = set(re.findall(r'name="word" value="([^"]+)"', self.get("/queue?name=dead")))
        return word

    def close(self) -> None:
        self.server.stop()
        self.vpn_monitor.close()


@pytest.fixture(scope="module")
def blocked() -> Iterator[Served]:
    """The page of the prepared cases."""
    engine = prepared("memory://page-cases")
    one = Served("memory://page-cases")
    yield one
    one.close()
    engine.close()


@pytest.fixture
def engine() -> Iterator[Any]:
    """An engine with a queue and its dead messages."""
    queue = {"message_type": "json", "max_per_subscription_backlog": 100}
    config = {"queues": [queue | {"name": "orders", "dead_message_queue": "dead"},
                         queue | {"name": "dead"}, queue | {"name": NASTY_QUEUE}]}  # fmt: skip
    url = f"memory://page-{next(_names)}"
    connection = lakequeue.connect(url, config=config)
    connection.case_url = url
    yield connection
    connection.close()


@pytest.fixture
def open_page(engine: Any) -> Iterator[Served]:
    """A page for reading only."""
    one = Served(engine.case_url)
    yield one
    one.close()


@pytest.fixture
def admin_page(engine: Any) -> Iterator[Served]:
    """A page with a token, for administrators."""
    one = Served(engine.case_url, auth=Auth(TOKEN, admin=True))
    yield one
    one.close()


def kill(engine: Any, count: int, reason: str = "too salty") -> list[str]:
    """Make messages dead."""
    numbers = send(engine, "orders", *({"n": n} for n in range(count)))
    with engine.consumer("orders", max_backlog=100, ack_mode="individual") as consumer:
        for _ in range(count):
            consumer.receive(timeout=0).reject(reason)
    return numbers


# ------------------------------------------------------------ contents


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_why_a_queue_does_not_move(blocked: Served, case: Any) -> None:
    text = blocked.get(f"/queue?name={case.code}")
    (reason,) = re.findall(r'data-code="\w+">(.*?)</p>', text, re.S)
    shown = re.sub(r"\d+", "0", unescape(re.sub("<[^>]+>", "", reason)))
    wanted = re.sub(r"\{\d\}|\d+", "0", case.text)
    assert shown.endswith(wanted)
    assert shown.startswith("It does not move." if case.stuck else "Nothing is ready.")


def test_queues_at_a_glance(blocked: Served) -> None:
    text = blocked.get("/")
    for case in CASES:
        assert f'<a href="/queue?name={case.code}">{case.code}</a>' in text
    filters = "no consumer&#39;s filter matches"
    for word in ("egress shut down", "partition_key", "no consumer", filters, "max_backlog"):
        assert f'<span class="badge bad">{word}</span>' in text


def test_queues_are_found_and_sorted(blocked: Served) -> None:
    def names(path: str) -> list[str]:
        rows = blocked.get(path).partition("<tbody>")[2]
        return re.findall(r'<th scope="row"><a href="/queue\?name=\w+">(\w+)</a>', rows)

    assert set(names("/?q=backlog")) == {"backlog", "queue_backlog"}
    codes = sorted(case.code for case in CASES)
    assert names("/?sort=name") == codes
    assert "No queue has “nothing”" in blocked.get("/?q=nothing")


def test_leased_messages_are_shown_with_their_consumers(blocked: Served) -> None:
    text = blocked.get("/queue?name=held")
    assert text.count("<td>worker-4</td>") == 3


def test_the_pages_say_what_is_missing() -> None:
    engine = lakequeue.connect("memory://page-empty", config={"queues": []})
    page = Served("memory://page-empty")
    assert "No queue is defined here." in page.get("/")
    assert "start this page with --home" in page.get("/message?id=3")
    assert "metrics are not available here" in page.get("/engine")
    assert "defined" in page.get("/events") or "Nothing has happened yet" in page.get("/events")
    page.close()
    engine.close()


def test_tasks_are_shown_by_name(request: pytest.FixtureRequest) -> None:
    url = f"memory://page-{next(_names)}"
    engine = lakequeue.connect(url)
    request.addfinalizer(engine.close)
    engine.admin().define({"name": "work", "message_type": "json", "dead_message_queue": "dead"})
    engine.admin().define({"name": "dead", "message_type": "json"})
    app = Celery("page", broker=f"lakequeue+{url}")
    request.addfinalizer(app.close)
    app.send_task("shop.charge", (1,), queue="work")
    app.send_task("shop.refund", (1,), queue="work")
    send(engine, "work", {"queue_name": "work", "actor_name": "remind", "args": [1]})
    send(engine, "work", {"headers": "none of a task"})
    engine.producer().send("work", b'{"too deep":' + b"[" * 100_000)
    send(engine, "dead", {"headers": {"task": "shop.poison"}})
    consumer = engine.consumer("work", max_backlog=1)
    assert consumer.receive() is not None
    served = Served(url)
    request.addfinalizer(served.close)

    def badges(queue: str) -> list[str]:
        shown = served.get(f"/queue?name={queue}")
        return re.findall(r'<span class="badge">([a-z.]+)</span> (?:</th>|\S)', shown)

    assert badges("work") == ["shop.charge", "shop.charge", "shop.refund", "remind"]  # leased, next
    assert set(badges("dead")) == {"shop.poison"}


def test_names_and_payloads_are_escaped(engine: Any, open_page: Served) -> None:
    client = lakequeue.connect(engine.case_url, client_name=NASTY)
    consumer = client.consumer(NASTY_QUEUE, max_backlog=1)
    send(engine, NASTY_QUEUE, {"n": NASTY}, headers={NASTY: NASTY})
    for path in ("/", f"/queue?name={quote(NASTY_QUEUE)}", f"/?q={quote(NASTY)}", "/events",
                 f"/message?id={quote(NASTY)}", f"/queue?name={quote('no' + NASTY)}"):  # fmt: skip
        _, text, headers = open_page.ask(path)
        assert "<script>alert" not in text
        assert "49" not in re.sub(r"\d{3,}|:\d\d", "", text)  # nor is a template in it
        assert "default-src 'none'" in headers["content-security-policy"]
    text = unescape(open_page.get(f"/queue?name={quote(NASTY_QUEUE)}"))
    assert text.count(NASTY_QUEUE) >= 3
    assert text.count(NASTY) >= 2
    consumer.close()
    client.close()


@pytest.mark.parametrize("time", ["²", "soon", "9" * 30])
def test_a_publishers_headers_are_not_the_engines(
    engine: Any, open_page: Served, time: str
) -> None:
    """A living message with such headers is not shown as a dead one, and no header breaks the
    page."""
    headers = {"lq-dead-time": time, "lq-dead-reason": "forged", "lq-dead-queue": "orders"}
    engine.producer().send("orders", b"{}", headers=headers)
    text = open_page.get("/queue?name=orders")
    assert "forged" not in text
    assert "Redrive" not in text


@pytest.mark.parametrize("moved", ["²", "9" * 5_000, "-1", "%3Cb%3E"])
def test_odd_addresses_do_not_break_the_page(open_page: Served, moved: str) -> None:
    text = open_page.get(f"/queue?name=orders&moved={quote(moved, safe='%')}&stayed={quote(moved)}")
    assert " redriven." not in text


def test_an_unknown_queue_is_not_found(open_page: Served) -> None:
    status, text, _ = open_page.ask("/queue?name=nobody")
    assert (status, "no such queue" in text) == (404, True)
    assert open_page.ask("/nothing")[0] == 404


def test_many_queues_are_shown_in_part() -> None:
    queues = [{"name": f"q{n:03}", "message_type": "json"} for n in range(ROWS_MAX + 5)]
    engine = lakequeue.connect("memory://page-many", config={"queues": queues})
    page = Served("memory://page-many")
    text = page.get("/")
    assert f"{ROWS_MAX} of {ROWS_MAX + 5} queues" in text
    assert text.count('<th scope="row">') == ROWS_MAX
    page.close()
    engine.close()


def test_rates_are_computed_between_snapshots_and_kept(engine: Any) -> None:
    now = [1.0]
    vpn_monitor = VpnMonitor(lambda: lakequeue.connect(engine.case_url), 2.0, lambda: now[0])

    def orders() -> tuple[float, float]:
        now[0] += 2
        return next(
            (q["in_s"], q["out_s"]) for q in vpn_monitor.look().queues if q["name"] == "orders"
        )

    assert orders() == (0, 0)
    send(engine, "orders", *({"n": n} for n in range(6)))
    assert orders() == (3, 0)
    engine.admin().purge("orders")
    assert orders() == (0, 3)
    past = [(point.depth, point.into) for point in vpn_monitor.past()]
    assert past == [(0, None), (6, 3), (0, 0)]  # the first snapshot has no rates
    engine.admin().delete("orders")
    now[0] += 2
    vpn_monitor.look()
    assert vpn_monitor.past("orders") == []
    vpn_monitor.close()


def test_after_a_slow_snapshot_the_page_is_at_most_ten_seconds_old(engine: Any) -> None:
    times = iter([0.0, 0.0, 3.0, 12.9, 13.1, 13.1, 13.2])  # the first snapshot takes three seconds
    vpn_monitor = VpnMonitor(lambda: lakequeue.connect(engine.case_url), 2.0, times.__next__)
    looks = [vpn_monitor.look() for _ in range(3)]
    assert [look is looks[0] for look in looks] == [True, True, False]
    vpn_monitor.close()


def test_an_unreachable_engine_is_reported_until_it_returns(engine: Any) -> None:
    answers: list[Any] = [lakequeue.NotConnected("No Kafka broker answers"), None]

    def connect() -> Any:
        if (error := answers.pop(0)) is not None:
            raise error
        return lakequeue.connect(engine.case_url)

    vpn_monitor = VpnMonitor(connect, every_s=0)
    assert [vpn_monitor.look().problem for _ in range(2)] == ["No Kafka broker answers", ""]
    vpn_monitor.close()


METRICS = """\
lakequeue_steps_total{broker="broker-0"} 17
lakequeue_step_seconds_total{broker="broker-0",phase="busy"} 0.25
lakequeue_query_batches_total{query="lakequeue-tables"} 4
lakequeue_queue_waiting_seconds_bucket{broker="b",vpn="default",queue="orders",le="0.1"} 0
lakequeue_queue_waiting_seconds_bucket{broker="b",vpn="default",queue="orders",le="0.5"} 10
lakequeue_queue_waiting_seconds_bucket{broker="b",vpn="default",queue="orders",le="+Inf"} 10
"""


def test_brokers_queries_and_times(engine: Any) -> None:
    page = Served(engine.case_url, figures=EngineFigures(lambda: METRICS))
    text = page.get("/engine")
    assert all(word in text for word in ("broker-0", "lakequeue-tables", "250 ms"))
    waited = "<dt>waited</dt><dd>300 ms <small>median, 99\u00a0%: 496 ms</small>"
    assert waited in page.get("/queue?name=orders")
    page.close()


def test_waiting_times_are_of_recent_deliveries_only(engine: Any) -> None:
    """Of messages delivered between two snapshots, not of all ever delivered."""
    lines = METRICS.splitlines(keepends=True)[-3:]
    grown = [line.replace(" 10\n", " 14\n").replace(" 0\n", " 4\n") for line in lines]
    texts, now = iter(["".join(lines), "".join(grown), "".join(grown)]), iter([1.0, 3.0, 5.0])
    figures = EngineFigures(lambda: next(texts), lambda: next(now))
    assert figures.times("default", "orders")["past"] == []
    (past,) = figures.times("default", "orders")["past"]
    assert past == (3.0, pytest.approx(0.05), pytest.approx(0.099))
    assert figures.times("default", "orders")["past"][-1] == (5.0, None, None)


def test_a_chart_has_a_label() -> None:
    text = chart("Seconds", {"a<": [1.0, None, 3.0], "b": [None] * 3}, [0.0, 2.0, 4.0])
    assert 'aria-label="Seconds: a&lt; 3; b –"' in text
    first, second = re.findall(r'points="([^"]*)"', text)
    assert (len(first.split()), second) == (2, "")
    assert "4 s ago" in text
    assert "<svg" in chart("empty", {"a": []}, [])


def test_quantiles() -> None:
    buckets = [(1.0, 0.0), (2.0, 4.0), (float("inf"), 5.0)]
    found = [quantile(buckets, 0.5), quantile(buckets, 0.99), quantile([], 0.5)]
    assert found == [1.625, 2.0, None]


def test_L12_extreme_times_break_no_page(engine: Any, open_page: Served) -> None:
    """Times of other programs' records, and of a delivery that never happens."""
    odd = [0, -1, 253_402_300_799_999, 1_795_700_000_000_000, (1 << 63) - 1]
    for ms in odd:
        engine.publish_raw("orders", b"{}", timestamp=ms)
    engine.producer().send("orders", b"{}", deliver_at="9999-12-31T23:59:59.999999Z")
    for path in ("/", "/queue?name=orders", "/events"):
        assert open_page.get(path)
    text = open_page.get("/queue?name=orders")
    assert text.count('<a href="/message?id=') == len(odd) + 1
    assert "delayed, due 9999-12-31 23:59:59" in text


def test_the_life_of_a_message(engine: Any) -> None:
    def life(number: str) -> list[str]:
        if number == "17":
            return ["Message 17", "  <b>"]
        raise lakequeue.LakequeueError(f"The tables have no message {number}.")

    page = Served(engine.case_url, life=life)
    assert "Message 17\n  &lt;b&gt;" in page.get("/message?id=17")
    assert "The tables have no message 4." in page.get("/message?id=4")
    page.close()


# ------------------------------------------------------------ permissions


def test_dead_messages_are_shown_and_redriven(engine: Any, admin_page: Served) -> None:
    first, *_ = kill(engine, 3)
    assert admin_page.sign_in() == 303
    assert admin_page.get("/queue?name=dead").count("<td>rejected: too salty</td>") == 3
    form = {"word": admin_page.word(), "queue": "dead", "vpn": "default"}
    status, _, headers = admin_page.ask("/redrive", form | {"ids": first})
    assert status == 303
    assert "1 redriven." in admin_page.get(headers["location"])
    assert engine.admin().describe("dead")["depth"] == 2
    assert admin_page.ask("/redrive", form)[0] == 303
    assert engine.admin().describe("orders")["depth"] == 3


def test_dead_messages_raise_no_alarm(engine: Any, open_page: Served) -> None:
    kill(engine, 1)
    text = open_page.get("/queue?name=dead")
    assert '<p class="note quiet" data-code="dead"> <span>Dead messages: 1 message waits' in text
    assert '<span class="badge ">no consumer</span>' in open_page.get("/")


def test_a_slow_queue_is_not_reported_as_blocked(engine: Any, open_page: Served) -> None:
    """The page judges the time between two snapshots, and takes snapshots by itself, too: so the
    test tries repeatedly."""
    moves = '<p class="note warn" data-code="backlog"><b>It moves, but messages wait.</b>'
    send(engine, "orders", *({"n": n} for n in range(50)))
    with engine.consumer("orders", max_backlog=1, ack_mode="individual") as consumer:
        message = consumer.receive(0)
        assert "<b>It does not move.</b>" in open_page.get("/queue?name=orders")
        for _ in range(40):
            message.ack()
            message = consumer.receive(0)
            if moves in open_page.get("/queue?name=orders"):
                return
    raise AssertionError("the page never shows that the queue moves")


@pytest.mark.parametrize(
    ("form", "headers", "signed_in"),
    [
        ({"word": ""}, {}, True), ({"word": "another"}, {}, True),
        ({}, {"Origin": "http://evil.example"}, True), ({}, {}, False),
    ],
    ids=["no word", "another word", "another site", "no session"],
)  # fmt: skip
def test_nobody_else_can_redrive(
    engine: Any, admin_page: Served, form: Any, headers: Any, signed_in: bool
) -> None:
    kill(engine, 1)
    admin_page.sign_in()
    whole = {"word": admin_page.word(), "queue": "dead"}
    if not signed_in:
        admin_page.cookie = ""
    status = admin_page.ask("/redrive", whole | form, **headers)[0]
    assert status == (403 if signed_in else 303)
    assert engine.admin().describe("dead")["depth"] == 1


def test_a_page_for_reading_changes_nothing(engine: Any, open_page: Served) -> None:
    kill(engine, 1)
    text = open_page.get("/queue?name=dead")
    assert "/redrive" not in text
    assert open_page.ask("/redrive", {"queue": "dead", "word": ""})[0] == 403
    assert engine.admin().describe("dead")["depth"] == 1


def test_only_a_token_gives_access(admin_page: Served) -> None:
    for path in ("/", "/queue?name=orders", "/message", "/engine", "/events"):
        status, text, headers = admin_page.ask(path)
        assert (status, headers["location"], "orders" in text) == (303, "/sign-in", False)
    assert admin_page.sign_in("another-token-altogether") == 403
    assert admin_page.ask("/")[0] == 303
    assert admin_page.sign_in() == 303
    _, _, headers = admin_page.ask("/sign-in", {"token": TOKEN})
    assert {"HttpOnly", "SameSite=strict"} <= set(headers["set-cookie"].split("; "))
    assert admin_page.ask("/")[0] == 200
    admin_page.ask("/sign-out", {})
    assert admin_page.ask("/")[0] == 303


@pytest.mark.parametrize(
    ("host", "status"),
    [("evil.example", 403), ("evil.example:80", 403), ("", 403), ("127.0.0.1.evil.example", 403),
     ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200)],
)  # fmt: skip
def test_only_this_machines_host_names_are_accepted(
    open_page: Served, host: str, status: int
) -> None:
    assert open_page.ask("/", Host=host)[0] == status


def test_guessing_a_token_is_slow_and_sessions_end() -> None:
    now = [0.0]
    auth = Auth(TOKEN, clock=lambda: now[0])
    cookie = auth.sign_in(TOKEN)
    for _ in range(FAILURES_MAX):
        assert auth.sign_in("wrong") is None
    assert auth.sign_in(TOKEN) is None  # not even the right one, for a while
    now[0] = FAILURES_S + 1
    assert auth.sign_in(TOKEN) is not None
    assert auth.session(cookie) is not None
    now[0] = SESSION_S + 1
    assert auth.session(cookie) is None


def test_a_large_form_is_refused(admin_page: Served) -> None:
    admin_page.sign_in()
    assert admin_page.ask("/redrive", {"word": "x" * 2_000_000})[0] == 403


def test_H2_a_bridge_names_the_blocking_endpoint(engine: Any, open_page: Served) -> None:
    with lakequeue.connect("memory://page-far") as far:
        bridge = {"name": "out", "subscriptions": ["a/>"]}
        far.admin().bridge({**bridge, "from": engine.case_url, "to": "broker-0"})
        queue = {"message_type": "text", "type": "LocalQueue", "subscriptions": ["a/>"]}
        far.admin().define({"name": NASTY_QUEUE, "max_spool_messages": 1, **queue})
        assert "Bridges" not in open_page.get("/")
        engine.admin().bridge({**bridge, "to": "memory://page-far"})
        for _ in range(3):
            engine.producer().send("a/b", b"x")
        shown, until = open_page.get("/"), time.monotonic() + 60
        while "1 bridge<" not in shown and time.monotonic() < until:
            time.sleep(0.2)  # a snapshot that took long is shown for a while
            shown = open_page.get("/")
        assert "1 bridge<" in shown
        assert f"{NASTY_QUEUE}: queue_quota for 0 ms, 2 waiting" in unescape(shown)
        assert NASTY_QUEUE not in shown
