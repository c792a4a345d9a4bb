"""The broker itself, pure: one step from live state, inputs and time to outputs."""
