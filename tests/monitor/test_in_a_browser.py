"""The page in a real browser: it keeps itself up to date, works by keyboard, on a phone, in dark
colours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import lakequeue
import pytest
from lakequeue.monitor.auth import Auth
from monitor.browser import Browser
from monitor.cases import CASES, prepared, send
from monitor.test_page import TOKEN, Served, kill

URL = "memory://browser"


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    connection = prepared(URL)
    queue = {"message_type": "json", "max_per_subscription_backlog": 100}
    connection.admin().define(queue | {"name": "orders", "dead_message_queue": "dead"})
    connection.admin().define(queue | {"name": "dead"})
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def page(engine: Any) -> Iterator[Served]:
    one = Served(URL)
    yield one
    one.close()


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with Browser() as one:
        yield one


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """A desktop's browser; a complaint on its console fails the test."""
    window.looks()
    window.said.clear()
    yield window
    assert window.said == []


def test_the_page_says_why_a_queue_does_not_move(
    engine: Any, page: Served, browser: Browser
) -> None:
    """One click from the overview. All reasons: `test_page.py`."""
    for case in CASES[:2]:
        browser.open(page.server.address)
        browser.run(f"document.querySelector('a[href=\"/queue?name={case.code}\"]').click()")
        browser.wait(f"document.querySelector('h1').innerText === '{case.code}'")
        ids = [m.id for m in engine.admin().browse(case.code)]
        assert case.text.format(*ids) in browser.text("#why")


def test_the_page_keeps_itself_up_to_date(engine: Any, page: Served, browser: Browser) -> None:
    """Typed text and the focus stay."""
    browser.open(f"{page.server.address}?sort=name")
    browser.run("document.querySelector('#search').focus()")
    browser.type("ord")
    send(engine, "orders", {"n": 1}, {"n": 2})
    row = "[...document.querySelectorAll('tbody tr')].find(r => r.innerText.startsWith('orders'))"
    browser.wait(f"{row}.cells[1].innerText === '2'")
    assert browser.run("document.activeElement.id + document.activeElement.value") == "searchord"
    browser.run(f"{row}.querySelector('a').focus()")
    send(engine, "orders", {"n": 3})
    browser.wait(f"{row}.cells[1].innerText === '3'")
    assert browser.run("document.activeElement.innerText") == "orders"
    browser.wait("document.querySelectorAll('polyline.line').length === 3")
    browser.wait("document.querySelector('polyline.line-0').getAttribute('points').includes(' ')")


def test_the_page_works_by_keyboard_alone(page: Served, browser: Browser) -> None:
    """`/` moves to the search, Enter searches, Tab reaches the queue, Enter opens it."""
    browser.open(page.server.address)
    browser.press("/", 191, "/")
    assert browser.run("document.activeElement.id") == "search"
    browser.type("key_busy")
    browser.press("Enter", 13, "\r")
    browser.wait("document.querySelectorAll('tbody tr').length === 1")
    browser.wait("document.readyState === 'complete'")  # its style sheet too
    for _ in range(40):
        browser.press("Tab", 9)
        if browser.run("document.activeElement.innerText") == "key_busy":
            break
    ring = browser.run("getComputedStyle(document.activeElement).outlineStyle")
    assert ring == "solid"
    browser.press("Enter", 13, "\r")
    browser.wait("document.querySelector('h1').innerText === 'key_busy'")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("path", ["", "queue?name=barrier", "events", "engine", "message"])
def test_the_page_works_on_a_phone_in_light_and_dark(
    page: Served, browser: Browser, path: str, dark: bool
) -> None:
    """Nothing is wider than the screen, and text stands out from its background."""
    browser.looks(390, 844, dark)
    browser.open(page.server.address + path)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    for selector in ("body", ".note.bad", ".note.warn", ".badge.bad", "td a", ".tile dt"):
        if browser.run(f"document.querySelector('{selector}') !== null"):
            assert contrast(browser, selector) >= 4.5, selector


def contrast(browser: Browser, selector: str) -> float:
    """The contrast of an element's text with its background, as WCAG defines it."""
    colours = browser.run(f"""(() => {{
        let at = document.querySelector('{selector}');
        const text = getComputedStyle(at).color;
        while (at.parentElement && getComputedStyle(at).backgroundColor === 'rgba(0, 0, 0, 0)')
            at = at.parentElement;
        return [text, getComputedStyle(at).backgroundColor];
    }})()""")
    first, second = sorted(map(_light, colours))
    return (second + 0.05) / (first + 0.05)


def _light(colour: str) -> float:
    values = [int(n) / 255 for n in re.findall(r"\d+", colour)[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_dead_message_is_redriven_with_a_click(engine: Any, browser: Browser) -> None:
    kill(engine, 2)
    page = Served(URL, auth=Auth(TOKEN, admin=True))
    browser.open(page.server.address)
    browser.wait("location.pathname === '/sign-in'")
    browser.type(TOKEN)
    browser.press("Enter", 13, "\r")
    browser.wait("location.pathname === '/'")
    browser.open(f"{page.server.address}queue?name=dead")
    assert browser.text("[data-live=dead]").count("rejected: too salty") == 2
    browser.run("document.querySelector('[data-live=dead] button').click()")
    browser.wait("document.querySelector('.note.good')?.innerText === '1 redriven.'")
    assert engine.admin().describe("dead")["depth"] == 1
    page.close()


def test_a_lost_server_is_reported(engine: Any, window: Browser) -> None:
    page = Served(URL)
    window.looks()
    window.open(page.server.address)
    page.close()
    window.wait("document.querySelector('#state').innerText.includes('does not answer')")
    assert lakequeue.connect(URL).admin().queues()
