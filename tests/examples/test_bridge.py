"""H2, H3: `lakequeue demo bridge` shows head-of-line blocking, and its remedy: lanes."""

import json
from itertools import pairwise

from click.testing import CliRunner
from lakequeue.cli import main
from lakequeue.examples.demo.blocked_bridge import CONSUMER_BACK_S, RATE


def test_H2_H3_the_chart_of_rates_with_one_lane_and_with_lanes() -> None:
    done = CliRunner().invoke(main, ["demo", "bridge", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert {ok for story in told.values() for ok in story["accounts"].values()} == {True}
    held = slice(4, CONSUMER_BACK_S - 1)
    one_lane, lanes = (told[name]["seconds"][held] for name in ("none", "per-destination"))
    assert {s["received"]["queue2"] for s in one_lane} == {0}
    assert {s["received"]["queue2"] for s in lanes} == {RATE}
    for seconds, topics in ((one_lane, 3), (lanes, 1)):
        assert {s["blocked"] for s in seconds} == {"queue1"}
        for before, after in pairwise(seconds):
            assert after["waiting"] == after["blocked_waiting"] == before["waiting"] + topics * RATE
    assert "each message arrived once, in order" in done.stderr


def test_demo_bridge_needs_no_home() -> None:
    done = CliRunner().invoke(main, ["demo", "bridge", "--home", "x"])
    assert done.exit_code == 2
    assert "--home belongs to the stories" in done.output
