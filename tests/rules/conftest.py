"""Fixtures for the tests of the rules."""

from rules.mesh import network as network
