"""Words of other systems, and lakequeue's words for them (Q7).

Newcomers first write the words of the system they know. The refusal names lakequeue's word. A
suggestion by spelling would mislead them: `visibility_timeout` is not a misspelt
`deferred_ack_expiration`. One table is the source of both the refusals and
`docs/reference/keys-of-other-systems.md`. A word is recognised in any spelling: `x-message-ttl`,
`xMessageTtl` and the policy's `message-ttl` are the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Word(NamedTuple):
    """theirs: the key as its system writes it; of: the system; ours: the key of a queue, or
    ``system.KEY``, or empty if there is no such key; note: more to know, or an alternative."""

    theirs: str
    of: str
    ours: str
    note: str = ""


_CONSUMER = "and max_backlog of the consumer; the lower one applies"
_ONE_MORE = "counts the first delivery too, so one more"
_SEND_TTL = "send(ttl=) for one message"
_DMQ = "a queue of the same VPN"
_MS = "milliseconds there, seconds here; write 30s"
_FROM = "epoch is earliest, now is latest; epoch by default"
_LATER = "give delay to send()"
_LEVELS = "levels are separated by /; * is one level, > the rest"

WORDS = (
    Word("prefetch", "RabbitMQ", "max_per_subscription_backlog", _CONSUMER),
    Word("prefetch_count", "RabbitMQ", "max_per_subscription_backlog", _CONSUMER),
    Word("x-message-ttl", "RabbitMQ", "expiration", _MS),
    Word("ttl", "RabbitMQ", "expiration", _SEND_TTL),
    Word("x-expires", "RabbitMQ", "", "no queue is deleted for lack of use"),
    Word("x-max-length", "RabbitMQ", "max_spool_messages", "leased messages count too"),
    Word("x-max-length-bytes", "RabbitMQ", "max_spool_usage", "leased messages count too"),
    Word(
        "x-overflow", "RabbitMQ", "reject_msg_to_sender_on_discard",
        "old messages are never dropped; max_spool_usage: 0 keeps only the last one",
    ),
    Word("x-dead-letter-exchange", "RabbitMQ", "dead_message_queue", _DMQ),
    Word("x-dead-letter-routing-key", "RabbitMQ", "dead_message_queue", _DMQ),
    Word("x-delivery-limit", "RabbitMQ", "max_deliveries", _ONE_MORE),
    Word("x-max-priority", "RabbitMQ", "priority", "an expression; /@priority is the publisher's"),
    Word("x-consumer-timeout", "RabbitMQ", "lease_period", "the consumer stays subscribed"),
    Word(
        "x-single-active-consumer", "RabbitMQ", "",
        "partition_key: \"'all'\" keeps its order, with one message leased at a time",
    ),
    Word("x-queue-type", "RabbitMQ", "", "there is one kind of storage; leave it out"),
    Word("x-queue-mode", "RabbitMQ", "", "every queue is kept on disk; leave it out"),
    Word("durable", "RabbitMQ", "", "every queue is durable; leave it out"),
    Word("auto_delete", "RabbitMQ", "", "delete it with admin.delete()"),
    Word("exclusive", "RabbitMQ", "", "queues are not bound to a connection"),
    Word("x-delayed-type", "RabbitMQ", "", _LATER),
    Word("alternate-exchange", "RabbitMQ", "", "a message that matches no queue is nacked"),
    Word("exchange", "RabbitMQ", "subscriptions", "by topic; there are no exchanges"),
    Word("routing_key", "RabbitMQ", "subscriptions", _LEVELS),
    Word("binding_key", "RabbitMQ", "subscriptions", _LEVELS),
    Word("VisibilityTimeout", "SQS", "lease_period"),
    Word("MessageRetentionPeriod", "SQS", "expiration", "none by default"),
    Word("maxReceiveCount", "SQS", "max_deliveries"),
    Word("deadLetterTargetArn", "SQS", "dead_message_queue", _DMQ),
    Word("RedrivePolicy", "SQS", "dead_message_queue", "together with max_deliveries"),
    Word("DeadLetterQueue", "SQS", "dead_message_queue", _DMQ),
    Word("dlq", "SQS", "dead_message_queue", _DMQ),
    Word("MaximumMessageSize", "SQS", "max_message_size"),
    Word("DelaySeconds", "SQS", "", _LATER),
    Word("ReceiveMessageWaitTimeSeconds", "SQS", "", "give timeout to receive()"),
    Word("MaxNumberOfMessages", "SQS", "max_per_subscription_backlog", _CONSUMER),
    Word("FifoQueue", "SQS", "", "every queue is; a returned message keeps its place"),
    Word("MessageGroupId", "SQS", "partition_key", "a field, or @key for the record key"),
    Word("ContentBasedDeduplication", "SQS", "", "producers number their messages"),
    Word("MessageDeduplicationId", "SQS", "", "give producer_id and first_sequence to producer()"),
    Word("selector", "JMS", "filter", "for the queue; a consumer has a filter of its own"),
    Word("JMSPriority", "JMS", "priority", "the expression /@priority; 0 to 255, default 4"),
    Word("timeToLive", "JMS", "expiration", f"{_SEND_TTL}; {_MS}"),
    Word("deliveryDelay", "JMS", "", _LATER),
    Word("JMSXGroupID", "JMS", "partition_key", "a field, or @key for the record key"),
    Word("maximumRedeliveries", "ActiveMQ", "max_deliveries", _ONE_MORE),
    Word("queuePrefetch", "ActiveMQ", "max_per_subscription_backlog", _CONSUMER),
    Word("consumerWindowSize", "Artemis", "max_per_subscription_backlog", "messages, not bytes"),
    Word("max-delivery-attempts", "Artemis", "max_deliveries"),
    Word("max-redelivery-delay", "Artemis", "redelivery_delay_max", _MS),
    Word("dead-letter-address", "Artemis", "dead_message_queue", _DMQ),
    Word("expiry-address", "Artemis", "dead_message_queue", "for expired messages too"),
    Word("expiry-delay", "Artemis", "expiration", _MS),
    Word("max-size-bytes", "Artemis", "max_spool_usage"),
    Word("address-full-policy", "Artemis", "reject_msg_to_sender_on_discard"),
    Word("last-value-key", "Artemis", "", "max_spool_usage: 0 keeps the last message, of all keys"),
    Word("task_acks_late", "Celery", "", "give ack_mode to consumer(); individual is late"),
    Word("worker_prefetch_multiplier", "Celery", "max_per_subscription_backlog", _CONSUMER),
    Word("max_retries", "Celery", "max_cancels", "counts the last cancel too, so one more"),
    Word("default_retry_delay", "Celery", "redelivery_delay"),
    Word("retry_delay", "Celery", "redelivery_delay"),
    Word("retry_backoff", "Celery", "redelivery_delay_multiplier", "with redelivery_delay"),
    Word("retry_backoff_max", "Celery", "redelivery_delay_max"),
    Word("expires", "Celery", "expiration", _SEND_TTL),
    Word("countdown", "Celery", "", _LATER),
    Word("eta", "Celery", "", "give deliver_at to send()"),
    Word("rate_limit", "Celery", "", "there is no rate limit; max_backlog limits leased messages"),
    Word("share.record.lock.duration.ms", "Kafka", "lease_period", _MS),
    Word("share.delivery.count.limit", "Kafka", "max_deliveries"),
    Word("share.partition.max.record.locks", "Kafka", "max_backlog", "over the whole queue"),
    Word("errors.deadletterqueue.topic.name", "Kafka", "dead_message_queue", _DMQ),
    Word("max.poll.records", "Kafka", "max_per_subscription_backlog", _CONSUMER),
    Word("max.poll.interval.ms", "Kafka", "lease_period", _MS),
    Word("session.timeout.ms", "Kafka", "system.heartbeat_timeout", "15 s by default"),
    Word("retention.ms", "Kafka", "expiration", _MS),
    Word("retention.bytes", "Kafka", "max_spool_usage", "new messages are refused; old ones stay"),
    Word("max.message.bytes", "Kafka", "max_message_size"),
    Word("auto.offset.reset", "Kafka", "recovery_point", _FROM),
    Word("share.auto.offset.reset", "Kafka", "recovery_point", _FROM),
    Word("cleanup.policy", "Kafka", "", "max_spool_usage: 0 keeps only the last of all messages"),
    Word("group.id", "Kafka", "", "define a queue for each group, all with one underlying_topic"),
)  # fmt: skip


def letters(key: str) -> str:
    """A key's letters and digits, without case: the same for all spellings."""
    return "".join(character for character in key.casefold() if character.isalnum())


_BY_LETTERS = {letters(word.theirs): word for word in WORDS}


def foreign_word(key: str) -> Word | None:
    """Find another system's word by this key, with or without RabbitMQ's ``x-``; None if there is
    none."""
    plain = letters(key)
    return _BY_LETTERS.get(plain) or _BY_LETTERS.get(f"x{plain}")


def answer(word: Word, known: Collection[str]) -> str:
    """The part of the sentence that refuses the key. known: the keys that are allowed there; if our
    key is not among them, the answer also names its section."""
    if not word.ours:
        return f"is not a known key but {word.of}'s word: {word.note}"
    system, dot, key = word.ours.partition(".")
    ours, section = (key, system) if dot else (word.ours, "a queue")
    place = "" if ours in known else f" of {section}"
    note = f" ({word.note})" if word.note else ""
    return f"is not a known key but {word.of}'s word for {ours}{place}{note}"
