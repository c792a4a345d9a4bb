"""Consumers: the binding to a queue, what has arrived, callbacks, acknowledgements."""
