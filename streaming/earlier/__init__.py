"""Homes of the earlier core (state format 7) go on on this one.

    pages of format 7 ─▶ `pages`: rows and facts ─▶ `carry_over`, `bridges` ─▶ a mark: the new pages

Nothing here writes the earlier format, and nothing knows what its core did with it. The stores in
tests/state/earlier_homes were written by that core; they say what is right.
"""
