"""What the rules say, as decisions: who, when, in which order, for how long. Nothing here changes
a message; `message` does."""
