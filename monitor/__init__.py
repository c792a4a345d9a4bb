"""Watches an engine: the reasons why messages wait, the page `lakequeue monitor`, `lakequeue
top`."""
