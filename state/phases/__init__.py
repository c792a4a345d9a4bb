"""What a step does, phase by phase: take in, act on what is due, deliver, watch."""
