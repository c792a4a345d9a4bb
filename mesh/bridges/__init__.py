"""Bridges to other homes and VPNs (H1–H3, X4): the near end (`endpoint`, `link`, `holds`), the far
end (`door`, `taking`), who defines them (`commands`, `shown`), and how `state` is answered
(`bridged`)."""
