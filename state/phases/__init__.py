"""What a step does, phase by phase (`step.PHASES`): take in, act on what is due, deliver, watch."""
