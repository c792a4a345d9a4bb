from lakequeue.state.storage.calendar import Calendar
from lakequeue.state.storage.row import NEVER


def test_keys_that_move_are_seen_while_the_heap_is_tidied() -> None:
    """Twenty keys are gone and one has 86 earlier entries, so the heap is tidied while the next
    time is looked for."""
    times = {0: 900, 21: 60, 22: 57}
    calendar = Calendar[int](lambda key: times.get(key, NEVER))
    for key, at in [*enumerate(range(1, 21), 1), (21, 50), (22, 55)]:
        calendar.watch(key, at)
    for at in range(986, 899, -1):
        calendar.watch(0, at)
    assert calendar.next() == 57
