"""Bridges between brokers of a home (H1–H3): the endpoint where messages wait and the link that
sends them (`link`), what the far end does with them (`far`), who has which bridge (`keeper`), and
what is shown of it (`shown`)."""
