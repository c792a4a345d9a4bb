"""Bridges to other homes and VPNs (H1–H3, X4): the near end (`endpoint`, `link`, `held_lanes`), the
far end (`far_end`, `bridge_intake`), who defines them (`bridge_commands`, `bridge_description`),
and how `state` is answered (`bridged_broker`)."""
