"""The pytest plugin, as an application's tests use it."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "test-your-application.md"

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Run a file with these tests."""

    def run(text: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", "--strict-markers")

    return run


def test_each_test_has_its_own_engine_and_clock(run) -> None:
    run(
        """
        import lakequeue as package

        def test_one(lakequeue):
            lakequeue.define("orders")
            before = lakequeue.now()
            with package.connect(lakequeue.url) as application:
                application.producer().send("orders", b"{}", delay="30s")
            consumer = lakequeue.connect(client_name="app").consumer("orders")
            assert consumer.receive() is None
            lakequeue.advance("30s")
            assert consumer.receive() is not None
            assert (lakequeue.now() - before).total_seconds() == 30
            assert lakequeue.admin.describe("orders")["depth"] == 1

        def test_two(lakequeue):
            assert lakequeue.admin.queues() == []
        """
    ).assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("ask", "outcome"),
    [
        ("@pytest.mark.lakequeue(all_acknowledged=True)", {"passed": 1, "errors": 1}),
        ('@pytest.mark.lakequeue(all_acknowledged=["orders"])', {"passed": 1, "errors": 1}),
        ('@pytest.mark.lakequeue(all_acknowledged=["other"])', {"passed": 1}),
        ("", {"passed": 1}),
    ],
)
def test_a_test_can_fail_on_leftover_messages(run, ask: str, outcome: dict) -> None:
    result = run(
        f"""
        import pytest

        {ask}
        def test_it(lakequeue):
            lakequeue.define("orders")
            lakequeue.define("other")
            lakequeue.connect().producer().send("orders", b"left behind")
        """
    )
    result.assert_outcomes(**outcome)
    if "errors" in outcome:
        result.stdout.fnmatch_lines(
            [
                "*AssertionError: messages are left unacknowledged: orders: 1",
                "*  orders 1: ready, 0 deliveries, b'left behind'",
            ]
        )


def test_acknowledged_messages_are_not_left_over(run) -> None:
    run(
        """
        import pytest

        @pytest.mark.lakequeue(
            config={"queues": [{"name": "orders", "message_type": "text"}]}, all_acknowledged=True
        )
        def test_it(lakequeue):
            connection = lakequeue.connect()
            connection.producer().send("orders", "x")
            with pytest.raises(AssertionError):
                lakequeue.assert_all_acknowledged("orders")
            connection.consumer("orders").receive().ack()

        def test_an_unknown_queue(lakequeue):
            with pytest.raises(ValueError, match="queue: 'nowhere'"):
                lakequeue.unacknowledged("nowhere")

        @pytest.mark.lakequeue(confg={})
        def test_a_mistyped_option_is_reported(lakequeue):
            pass
        """
    ).assert_outcomes(passed=2, errors=1)


def test_the_example_of_the_page(run) -> None:
    (example,) = re.findall(r"^```python pytest\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    run(example).assert_outcomes(passed=2)
