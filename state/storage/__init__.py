"""How a queue is stored: rows in memory and in runs, contents in the spool."""
