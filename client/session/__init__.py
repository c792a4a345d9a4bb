"""The session between a client and a broker: requests, directory, transport, runner."""
