"""The order of a queue as one integer a message: smaller goes out first (O1, O2, O3, L7).

A barrier is the last of its *generation*, and what enters behind it belongs to the next one, also
when the barrier is gone; inside a generation the higher priority comes first, inside that the
earlier place. All three are given as the message enters and never change (Q6), so a
message that returns goes back to exactly where it was, and a queue that is defined again in another
way needs no new order (Q9). For a queue without priorities and barriers the key is the place.
"""

from __future__ import annotations

PRIORITY_MAX = (1 << 64) - 1
SEQ_BITS = 64
SEQ_MASK = (1 << SEQ_BITS) - 1


def key_of(seq: int, priority: int = 0, generation: int = 0) -> int:
    """The key of a place."""
    return (generation << 128) - (priority << SEQ_BITS) + seq


def seq_of(key: int) -> int:
    """The place that a key stands for."""
    return key & SEQ_MASK


def barrier_key(seq: int, generation: int) -> int:
    """What a barrier stands as among those that wait; its place is `seq_of` it."""
    return (generation << SEQ_BITS) + seq


def generation_of(barrier: int) -> int:
    """The generation of which a barrier is the last."""
    return barrier >> SEQ_BITS


def first_key_of(generation: int) -> int:
    """A key that is not above any of this generation, and above all of earlier ones."""
    return (generation << 128) - (PRIORITY_MAX << SEQ_BITS)
