"""Changes while the home rests: brokers are added and removed, queues move."""
