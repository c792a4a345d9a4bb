"""The home's folder: its checks, its repairs, and states on their way into a checkpoint."""
