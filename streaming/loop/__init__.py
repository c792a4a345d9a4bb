"""What runs in a Python worker: a broker's loop, its steps, and its pages in Spark's state."""
