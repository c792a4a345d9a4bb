"""Live objects: a broker, its queues, their messages; the only code that changes a message."""
