"""Watches: restart queries that ended or hang, and report to the operator."""
