"""What the rules say: who, when, in which order, for how long, and what follows."""
