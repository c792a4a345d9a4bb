"""Fixtures for the tests of several brokers."""

from mesh.bugs import bug as bug
from rules.mesh import network as network
