"""`python -m sim 17` runs the world of a seed, and shrinks a failure; `--soak 1000` runs many;
`--mutants` hunts all planted bugs, or those named."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor, as_completed

from . import mesh_mutants as mesh_mutants
from .mutants import MUTANTS, hunt
from .world import Failed, run, shrink

MUTANT_SEEDS = 500


def try_one(seed: int) -> tuple[int, str]:
    """A seed, and the failure of its world."""
    try:
        run(seed)
    except Failed as failed:
        return seed, str(failed)
    return seed, ""


def soak(first: int, count: int, processes: int) -> int:
    """Run many worlds; returns the number of failures."""
    begun, failures = time.monotonic(), 0
    with ProcessPoolExecutor(processes) as pool:
        running = [pool.submit(try_one, seed) for seed in range(first, first + count)]
        for n, one in enumerate(as_completed(running), 1):
            why = one.result()[1]
            if why:
                failures += 1
                print(why, flush=True)
            if n % 500 == 0 or n == count:
                rate = n / (time.monotonic() - begun)
                print(f"{n} seeds, {failures} failed, {rate:.1f} a second", flush=True)
    return failures


def show(seed: int) -> int:
    """Run one world; shrink and print a failure."""
    begun = time.monotonic()
    try:
        world = run(seed)
    except Failed as failed:
        print(failed)
        todo, failed = shrink(seed)
        print(f"shrunk to {len(todo)} events: {failed}")
        print("\n".join(failed.told))
        traceback.print_exception(failed.cause, limit=-8, chain=False)
        print("todo =", todo)
        return 1
    print(f"seed {seed}: {len(world.accounts.sent)} messages, {time.monotonic() - begun:.2f} s")
    return 0


def hunt_all(names: Collection[str], processes: int) -> int:
    """Hunt these planted bugs; returns the number that no world finds."""
    missed = 0
    with ProcessPoolExecutor(processes) as pool:
        hunts = {name: pool.submit(hunt, name, MUTANT_SEEDS) for name in names}
        for name, one in hunts.items():
            seed = one.result()
            missed += seed is None
            print(f"{name}: {'not found' if seed is None else f'seed {seed}'}", flush=True)
    print(f"{len(names)} planted bugs, {missed} not found")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="sim")
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--soak", type=int, default=0, help="so many seeds from this one on")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="hunt planted bugs, or all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.mutants is not None:
        return 1 if hunt_all(given.mutants or MUTANTS, given.processes) else 0
    if given.soak:
        return 1 if soak(given.seed, given.soak, given.processes) else 0
    return show(given.seed)


if __name__ == "__main__":
    sys.exit(main())
