"""Converts homes of the earlier core (state format 7), once. Pure.

    old pages ─▶ `pages`: rows and facts ─▶ `carry_over`, `earlier_bridges` ─▶ new pages

This package only reads the earlier format. Its tests use stores that the earlier core wrote, in
tests/state/earlier_homes.
"""
