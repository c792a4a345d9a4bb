"""Producers: options of a message, the window of unanswered messages, one channel per broker."""
