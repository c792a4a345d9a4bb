"""Watches an engine: why messages wait, the page `lakequeue monitor`, `lakequeue top`."""
