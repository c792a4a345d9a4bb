"""Changes of a home's brokers: requests for them, and the move of queues while the home rests."""
