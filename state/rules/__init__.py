"""The rules: who gets a message, when, in which order, for how long, and what follows."""
