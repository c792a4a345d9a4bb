"""What a queue keeps, and where: rows in memory and in runs, contents in the spool."""
