"""Fixtures for the tests of several brokers."""

from rules.mesh import network as network
