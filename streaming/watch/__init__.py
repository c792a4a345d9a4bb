"""Watches: restart what ended or hangs, and tell the operator."""
