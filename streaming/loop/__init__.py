"""The code of a Python worker: a broker's loop, its steps, and its pages in Spark's state."""
