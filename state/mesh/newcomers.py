"""What a queue's hosts were told since it was defined, for one that hosts it from now on (Q2, H5).

A broker that is added gets the definitions of the queues that it is to host. Topics that a queue
has subscribed to while it ran, or ended, and whether it is shut down stand in no definition: the
new host asks the first of the others for them, when the directory says that it is one. So does a
broker that was to be removed and stays: it says what it has, for that may have ended meanwhile.
These two may not have heard of each other yet; the keeper knows all, and passes on what they say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...protocol.carrying import Entry, SaySinceDefined, SinceDefined
from ...protocol.commands import Shutdown, SubscribeTopic, UnsubscribeTopic
from ..commands import administration
from ..commands.topic_subscriptions import subscribe_topic, topics_of, unsubscribe_topic
from .saying import say

if TYPE_CHECKING:
    from ..broker import Broker


def ask(broker: Broker, vpn: str, name: str, before: Entry | None, entry: Entry) -> None:
    """The directory says something else of a queue now."""
    own = broker.header.number
    if before is None or not entry.whole or own in before.hosts or own not in entry.hosts:
        return
    if before.hosts:
        queue, host = broker.find(vpn, name), before.hosts[0]
        has = None if queue is None else topics_of(broker, queue)
        _say(broker, host, SaySinceDefined(vpn, name, host, own, has))


def _say(broker: Broker, to: int, what: SaySinceDefined | SinceDefined) -> None:
    peers = broker.header.peers
    by = to if to in peers else broker.header.keeper
    if by in peers:  # else it is gone
        say(broker, by, what)


def answer(broker: Broker, sender: int, said: SaySinceDefined) -> None:
    """A new host asks; nothing is said where all is as it was defined."""
    if said.host != broker.header.number:
        _say(broker, said.host, said)
        return
    queue = broker.find(said.vpn, said.queue)
    if queue is None:  # it was deleted meanwhile
        return
    given = set(queue.definition.subscriptions if said.has is None else said.has)
    now = set(topics_of(broker, queue))
    added, gone = sorted(now - given), sorted(given - now)
    ingress, egress = queue.header.ingress, queue.header.egress
    if added or gone or not (ingress and egress) or said.has is not None:
        what = SinceDefined(said.vpn, said.queue, said.asks, added, gone, ingress, egress)
        _say(broker, said.asks, what)


def hear(broker: Broker, sender: int, said: SinceDefined) -> None:
    """The answer, for this broker or another."""
    if said.asks != broker.header.number:
        _say(broker, said.asks, said)
        return
    queue = broker.find(said.vpn, said.queue)
    if queue is None:  # it was deleted meanwhile
        return
    present = set(topics_of(broker, queue))
    for topic in said.topics:
        if topic not in present:
            subscribe_topic(broker, said.vpn, queue, SubscribeTopic(queue=said.queue, topic=topic))
    for topic in said.gone:
        if topic in present:
            end = UnsubscribeTopic(queue=said.queue, topic=topic)
            unsubscribe_topic(broker, said.vpn, queue, end)
    if (said.ingress, said.egress) != (queue.header.ingress, queue.header.egress):
        shut = Shutdown(queue=said.queue, ingress=not said.ingress, egress=not said.egress)
        administration.shutdown(broker, said.vpn, queue, shut)
