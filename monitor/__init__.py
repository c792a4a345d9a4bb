"""Watching an engine: why a queue does not move, the page `lakequeue monitor`, `lakequeue top`."""
