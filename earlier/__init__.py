"""Carries over homes of the earlier core (state format 7), once. Pure.

    old pages ─▶ `pages`: rows and facts ─▶ `carry_over`, `earlier_bridges` ─▶ new pages

Nothing here writes the earlier format or knows what its core did with it. That core wrote the
stores in tests/state/earlier_homes, against which this code is tested.
"""
