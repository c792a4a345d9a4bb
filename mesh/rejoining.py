"""Brokers that are made again from what was written down go on speaking to each other (R3).

Each is made again as of some step, and what it said and did in later steps is lost, though others
may have heard of it. So two things have to be so before they go on:

- *Nobody has heard what nobody has said.* Of each pair of brokers the one must not have heard more
  than the other, as it is now, has said. Whoever has goes back to an earlier step, until that is so
  of all (`agree`). What was said and is not heard yet still stands in Kafka, and is heard then.
- *Words of lost steps are passed over.* They stand in Kafka too. A broker goes on numbering far
  ahead, and the others know which numbers in between are of lost steps (`pass_over`).

What was said and not heard may be lost too, where the home goes on on another Kafka. So each broker
greets the others. Who misses numbers before that says so, and both say again what they have under
way (`Mesh._say_again`). No word tells which of it was heard: ids do, as far as a queue knows them.

Then all brokers together are as they were when nothing had been lost but steps that nobody has
heard of, and go on from there as after any death.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .facts import Peer

WORDS_AHEAD = 1 << 32  # more than were said in steps that are lost, by far


class RejoiningBroker(NamedTuple):
    """A broker as of a step. peers: what it knows of the others, by number."""

    name: str
    number: int
    peers: dict[int, Peer]


SpeakerAt = Callable[[str, int], RejoiningBroker | None]


def agree(last: dict[str, int], speaker_at: SpeakerAt) -> dict[str, int]:
    """The latest step of each broker such that nobody has heard what nobody has said. last: the
    step that is known last of each; speaker_at: a broker behind a step, None before what is known.
    Raises LookupError where nothing that is known goes together."""
    steps = dict(last)
    while True:
        speakers = {name: _known(speaker_at, name, step) for name, step in steps.items()}
        ahead = next((s for s in speakers.values() if _hears_too_much(s, speakers)), None)
        if ahead is None:
            return steps
        steps[ahead.name] = _earlier(ahead.name, steps[ahead.name], speakers, speaker_at)


def _known(speaker_at: SpeakerAt, name: str, step: int) -> RejoiningBroker:
    speaker = speaker_at(name, step)
    if speaker is None:
        raise LookupError(f"broker {name!r}: nothing that is known of it goes with the others")
    return speaker


def _hears_too_much(own: RejoiningBroker, speakers: dict[str, RejoiningBroker]) -> bool:
    for other in speakers.values():
        heard, said = own.peers.get(other.number), other.peers.get(own.number)
        if heard is not None and heard.heard > (0 if said is None else said.said):
            return True
    return False


def _earlier(
    name: str, step: int, speakers: dict[str, RejoiningBroker], speaker_at: SpeakerAt
) -> int:
    """The last step before this one at which a broker has not heard too much: what it has heard
    only grows, so few steps are looked at."""

    def fits(at: int) -> bool:
        return not _hears_too_much(_known(speaker_at, name, at), speakers)

    back = 1
    while not fits(max(step - back, 1)):
        if step - back <= 1:
            raise LookupError(f"broker {name!r}: nothing that is known of it goes with the others")
        back *= 2
    low, high = max(step - back, 1), step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def pass_over(speakers: Iterable[RejoiningBroker]) -> None:
    """What these said in steps that are lost nobody is to hear."""
    everybody = list(speakers)
    for one in everybody:
        for other in everybody:
            peer = one.peers.get(other.number)
            if peer is not None:
                hearer = other.peers.setdefault(one.number, Peer(one.name))
                hearer.lost_words.append([peer.said + 1, peer.said + WORDS_AHEAD])
                peer.said += WORDS_AHEAD


def next_word(peer: Peer) -> int:
    """The number of the record that comes next from a broker."""
    number = peer.heard + 1
    for first, last in peer.lost_words:
        if first <= number <= last:
            number = last + 1
    return number


def is_lost(peer: Peer, number: int) -> bool:
    """Whether this number was given in a step that is lost."""
    return any(first <= number <= last for first, last in peer.lost_words)
