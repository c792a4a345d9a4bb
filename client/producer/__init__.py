"""Producers: options of a message, a window of unanswered messages per broker, moving queues."""
