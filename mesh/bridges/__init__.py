"""Bridges to other homes and VPNs (H1–H3, X4): the near end (`endpoint`, `link`), the far end
(`far_end`), the commands (`bridge_commands`)."""
