"""Two brokers on a standalone cluster of two workers, as in production: the engine is submitted;
driver, executors and Python workers are processes of their own, and tables and checkpoints are on
an S3 store. Where hosts can be made, Kafka, the driver and each worker are on hosts of their own,
with links that are cut and slowed. Kafka requires credentials, over TLS: only the driver and the
clients have a file with them. A program without credentials, or with wrong ones, gets an error in
one sentence, at once.

Each broker is a client of the other (M1–M6). Under traffic one dies, links are cut in one direction
and in both, an executor is lost, and another is decommissioned (a node is drained, a spot instance
taken back). Nothing is lost, repetitions are flagged, and the log of each broker has every step
once: a worker that was cut off or frozen while its broker moved is fenced and writes nothing.
(Messages between brokers: `tests/mesh`; changes of brokers: `test_damage.py`.)
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lakequeue
import psutil
import pytest
from job.brokers import BACK_S_MAX, BROKERS, take, traffics
from job.cluster_home import VPNS, Home
from job.hosts import Host, Network, NoNetwork
from job.output_audit import steps_say
from job.processes import SLOWER, gone, thaw, until
from job.secured import (
    KEY,
    nothing_beyond_its_vpn,
    nothing_without_the_right,
    one_message,
    settings_file,
)
from job.tables import check_tables
from job.traffic import Traffic, drain
from lakequeue.client.kafka import LIBRARIES
from lakequeue.definitions.bridge import parse_bridge
from lakequeue.protocol.errors import LakequeueError
from lakequeue.protocol.kafka_settings import FOLDER_VARIABLE, VARIABLE
from lakequeue.sources.live import kafka_client
from lakequeue.sources.replay_inputs import read_steps
from lakequeue.streaming.bridges.home_copier import HomeCopier
from lakequeue.streaming.jars import S3_XML, ensure_jars
from lakequeue.streaming.restarts import is_late
from s3_store import store

pytestmark = pytest.mark.job

CUT_S = 4.0
TOLD_S_MAX = 60.0

Running = dict[str, Traffic]


@pytest.fixture(scope="module")
def network() -> Iterator[Network | str]:
    """The network, or the reason why there is none."""
    with contextlib.ExitStack() as stack:
        try:
            found: Network | str = stack.enter_context(Network(4))
        except NoNetwork as error:
            found = f"no network of one's own can be made here: {error}"
        yield found


@pytest.fixture(scope="module")
def home(network: Network | str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    there = isinstance(network, Network)
    ensure_jars(wanted=S3_XML)  # the hosts reach no network to fetch them from
    with (
        pytest.MonkeyPatch.context() as patch,
        store(patch, network.bridge if there else "127.0.0.1") as bucket,
    ):
        hosts = network.hosts if there else []
        home = Home(tmp_path_factory.mktemp("standalone"), hosts, bucket, patch)
        try:
            home.engine.wait_ready()
            yield home
        finally:
            home.kill()


def test_everybody_has_credentials(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics are created, the loops step, Spark's tables are readable. Clients of both libraries
    and both mechanisms; and none reaches beyond its VPN, queues, key."""
    kafka, ids = home.kafka, set[str]()

    def given(mechanism: str, user: str = "engine", certificate: Path | None = None) -> None:
        file = settings_file(tmp_path, mechanism, user=user, certificate=certificate)
        monkeypatch.setenv(VARIABLE, str(file))

    for library in LIBRARIES:
        monkeypatch.setenv("LAKEQUEUE_KAFKA_LIBRARY", library)
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            given(mechanism)
            ids.add(one_message(f"kafka://{kafka.secured}", "default"))
        for vpn in ("right", "left"):
            given("SCRAM-SHA-512", vpn, kafka.certificate)
            ids.add(one_message(f"kafka://{kafka.encrypted}", vpn))
    nothing_beyond_its_vpn(kafka)
    nothing_without_the_right(kafka)
    told = subprocess.run(
        [sys.executable, "-m", "lakequeue.cli", "queues", "--url", f"kafka://{kafka.encrypted}",
         "--vpn", "left", "--json"], capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert '"orders"' in told.stdout, told.stderr
    monkeypatch.delenv(VARIABLE)
    check_tables(home.tables, kafka.bootstrap_servers, ids, VPNS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_without_credentials_gets_an_error(
    home: Home, tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = home.kafka
    monkeypatch.setenv("LAKEQUEUE_KAFKA_LIBRARY", library)
    monkeypatch.delenv(VARIABLE, raising=False)
    for mechanism in (None, "PLAIN", "SCRAM-SHA-512"):
        said = VARIABLE
        if mechanism is not None:
            monkeypatch.setenv(VARIABLE, str(settings_file(tmp_path, mechanism, "not it")))
            said = "refuses the credentials"
        begun = time.monotonic()
        with pytest.raises(lakequeue.NotConnected) as caught:
            lakequeue.connect(f"kafka://{kafka.secured}")
        assert time.monotonic() - begun < TOLD_S_MAX
        sentence = str(caught.value)
        assert said in sentence, mechanism
        assert kafka.secured in sentence
        assert "\n" not in sentence
        assert len(sentence) < 300


def test_an_engine_with_wrong_credentials_reports_them(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(settings_file(tmp_path, "SCRAM-SHA-512", "not it")))
    kafka, config = home.kafka, home.engine.home.parent / "queues.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "lakequeue.cli", "run", "--bootstrap", kafka.secured,
         "--home", str(tmp_path / "home"), "--config", str(config)],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if VARIABLE in line]
    assert len(lines) == 1, done.stderr
    assert kafka.secured in lines[0]
    assert "Traceback" not in done.stderr


def test_h1_a_bridge_reports_why_the_far_kafka_refuses_it(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the right credentials it gets as far as the topics, which nobody created here."""
    kafka = home.kafka
    wrong = settings_file(tmp_path, "SCRAM-SHA-512", "not it").name
    right = settings_file(tmp_path, "SCRAM-SHA-512").name
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv(VARIABLE, str(settings_file(tmp_path, "PLAIN")))  # the home's, for the home
    bridge = {"name": "b", "from": "near", "to": f"kafka://{kafka.secured}", "subscriptions": [">"]}
    for named, said in {
        "nobody": "nobody' – must name a file", None: "asks for credentials",
        wrong: f"refuses the credentials {wrong!r}", right: "has no topic 'default.bridge-in'",
    }.items():  # fmt: skip
        credentials = {} if named is None else {"credentials": named}
        copier = HomeCopier(kafka.bootstrap_servers, 1, parse_bridge(bridge | credentials))
        with pytest.raises(LakequeueError) as caught:
            copier._copy()
        sentence = str(caught.value)
        assert said in sentence
        assert "not it" not in sentence
        assert len(sentence) < 400


def test_each_broker_steps_in_its_own_worker(home: Home) -> None:
    assert sorted(home.workers()) == list(BROKERS)
    for broker in BROKERS:
        logged = read_steps(kafka_client(home.kafka.encrypted, "look"), f"{broker}.steps", 0)
        assert any(r.inputs for _, r in logged), "only the live driver reports a step's inputs"
        with lakequeue.connect(home.url, broker=broker) as there:
            seen = {q["name"]: q["broker"] for q in there.admin().queues()}
            assert [seen[f"orders-{name}"] for name in BROKERS] == list(BROKERS)
            known = there.admin().brokers()
        assert [(b["name"], b["number"], b["state"]) for b in known] == [
            (name, at, "running") for at, name in enumerate(BROKERS)
        ]


def test_H4_S1_a_brokers_death_does_not_affect_the_others_clients(home: Home) -> None:
    """Broker a has traffic of its own, and forwards messages to a queue of the dead broker b all
    the time: their receipts come at once. So do those of messages that match queues of both, and of
    a queue that both host. (Several brokers, and deaths at any point: `tests/sim`.)"""
    running = traffics(home.url, "a", per_second=10)
    go_on(running)
    with lakequeue.connect(home.url, broker="a") as near:
        producer = near.producer()
        before = home.workers()
        ids = [producer.send("orders-b", b"0").message_id]
        before["b"].kill()
        begun = time.monotonic()
        ids += [producer.send("orders-b", b"%d" % at).message_id for at in range(1, 40)]
        news = [producer.send("news/x", b"%d" % at).message_id for at in range(20)]
        spread = {producer.send("spread", b"%d" % at).message_id for at in range(20)}
        assert time.monotonic() - begun < 15 * SLOWER, "senders wait for the dead one"
        for traffic in running.values():
            traffic.goes_on(15, 15)
        assert [m.id for m in take(near, "orders-b", 40)] == ids
        for queue in ("one", "two"):
            assert [m.id for m in take(near, queue, 20)] == news
        with lakequeue.connect(home.url, broker="b") as other:
            assert {m.id for m in take(other, "spread", 20)} == spread
        after = home.workers()
    assert {b for b in BROKERS if before[b] != after[b]} == {"b"}
    for traffic in running.values():
        drain(traffic)


def test_nothing_is_lost_when_links_are_cut_and_executors_leave(
    network: Network | str, home: Home
) -> None:
    """The last test of this home."""
    running = traffics(home.url, *BROKERS)
    go_on(running)
    if isinstance(network, str):
        lost = an_executor_dies(home, running)
    else:
        lost = links_are_cut(home, network.hosts, running)
    until(lambda: gone(lost), 60, "the lost executor ends once it reaches the driver again")
    until(lambda: len(home.cluster.executors()) == 2, 60, "another executor takes its place")
    an_executor_leaves(home, running)
    for traffic in running.values():
        traffic.finish_producing()
    for traffic in running.values():
        drain(traffic)
    for number, broker in enumerate(BROKERS):  # no step is missing, or twice in the log
        steps_say(home.kafka.encrypted, home.engine.home, broker, number)
    ends_in_order(home)
    if isinstance(network, str):
        pytest.skip(f"an executor died and another left, but no link was cut: {network}")


def go_on(running: Running) -> float:
    """Wait until all traffic continues; returns the seconds."""
    begun = time.monotonic()
    for traffic in running.values():
        traffic.goes_on(8, BACK_S_MAX)
    return time.monotonic() - begun


def links_are_cut(home: Home, hosts: list[Host], running: Running) -> psutil.Process:
    """The links of a broker's executor: for a moment each, then for as long as the broker needs to
    move. Returns the executor that Spark has given up then."""
    kafkas, drivers, *executors = hosts

    def of(executor: psutil.Process) -> Host:
        """Its host. Spark chooses where a broker runs, and may choose one executor for both."""
        words = executor.cmdline()
        return next(host for host in executors if host.address in words)

    one = of(executor_of_first(home))
    (other,) = (host for host in executors if host is not one)
    with other.slow(100):
        back_after("Kafka does not hear an executor", running, one.unheard(kafkas))
    back_after("an executor does not hear Kafka", running, kafkas.unheard(one))
    back_after("the driver does not hear an executor", running, one.unheard(drivers))
    lost = executor_of_first(home)
    with of(lost).cut_off():
        print(f"an executor is cut off: its brokers are elsewhere after {go_on(running):.1f} s")
    print(f"and is there again: {go_on(running):.1f} s")
    return lost


def back_after(what: str, running: Running, fault: contextlib.AbstractContextManager[None]) -> None:
    """All traffic continues after a short fault."""
    with fault:
        begun = {broker: len(traffic.acked) for broker, traffic in running.items()}
        time.sleep(CUT_S)
        during = [len(running[b].acked) - n for b, n in begun.items()]
    print(f"{what}: {during} messages meanwhile; back after {go_on(running):.1f} s")


def executor_of(worker: psutil.Process, executors: list[psutil.Process]) -> psutil.Process:
    above = {p.pid for p in worker.parents()}
    return next(e for e in executors if e.pid in above)


def executor_of_first(home: Home) -> psutil.Process:
    """The executor on which the first broker runs."""
    found = until(lambda: home.workers().get(BROKERS[0]), 30, "it steps")
    return executor_of(found, home.cluster.executors())


def an_executor_dies(home: Home, running: Running) -> psutil.Process:
    """One of its Python workers is frozen before, and continues once its broker runs elsewhere: two
    attempts of one broker, of which only one writes. Returns the executor."""
    zombie = home.workers()[BROKERS[0]]
    zombie.send_signal(signal.SIGSTOP)
    lost = executor_of(zombie, home.cluster.executors())
    lost.kill()
    print(f"an executor died: back after {go_on(running):.1f} s")
    thaw(zombie)
    return lost


def an_executor_leaves(home: Home, running: Running) -> None:
    """It is decommissioned: batches that run there end, the next ones start on the other, and no
    query fails."""

    def failures() -> list[str]:
        """The restarts of queries, without those that a busy machine causes. A worker that takes
        half a minute to start elsewhere is reported as hanging; another is not ready in time."""
        ends = [e for e in home.engine.log.read_text().splitlines() if "is started again" in e]
        return [end for end in ends if "has taken no step" not in end and not is_late(end)]

    failed = failures()
    leaves = executor_of_first(home)
    leaves.send_signal(signal.SIGPWR)
    until(lambda: gone(leaves), 60, "it has left")
    go_on(running)
    assert failures() == failed


def ends_in_order(home: Home) -> None:
    """The engine reports a clean stop, no secret was printed, and its data are in the store."""
    assert home.engine.terminate() == 0
    assert home.engine.said[-1]["event"] == "goodbye"
    assert "Traceback" not in home.engine.errors()
    for log in home.logs:
        text = log.read_text(errors="replace")
        assert "quoted" not in text, log  # the password
        assert KEY not in text, log
    assert any((home.store / "checkpoints" / "checkpoint" / "a").glob("commits/*"))
    assert not (home.engine.home / "checkpoint").exists()
    assert not any((home.engine.home / "tables").glob("*/_delta_log"))
