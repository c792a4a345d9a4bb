"""The phases of a step: take in, act on what is due, deliver, watch."""
