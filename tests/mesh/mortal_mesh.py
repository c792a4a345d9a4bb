"""The brokers of `rules.mortal`, under the names that the tests here know."""

from rules.mortal import MortalBroker as MortalMeshBroker
from rules.mortal import MortalEngine as MortalMeshEngine

MortalLiveBroker = MortalMeshBroker

__all__ = ["MortalLiveBroker", "MortalMeshBroker", "MortalMeshEngine"]
