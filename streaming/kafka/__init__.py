"""The embedded Kafka, the topics that the engine needs, and a watch on whether Kafka answers."""
