"""Which topics there are, told by a broker that has just made them."""

from lakequeue.streaming.topics_admin import _sizes


def test_what_was_just_made_counts_though_kafka_does_not_describe_it_yet() -> None:
    """A receipt for a topic that seems not to be there would go to `<vpn>.rejected`, for ever."""
    described = [
        {"name": "old", "partitions": [0, 1, 2]},
        {"name": "default.receipts", "partitions": []},
        {"name": "default.publish", "partitions": [0, 1]},
    ]
    made = {"default.receipts": 8, "default.publish": 2, "default.journal": 1}
    assert _sizes(described, made) == {
        "old": 3, "default.receipts": 8, "default.publish": 2, "default.journal": 1,
    }  # fmt: skip
