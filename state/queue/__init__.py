"""What is live: a broker, its queues, their messages; the one place where a message changes."""
