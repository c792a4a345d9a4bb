"""The commands on an engine in memory, as text: see `transcript.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from transcript import Step, Transcript, load

TRANSCRIPTS = load()


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Transcript(TRANSCRIPTS[name], tmp_path).play()


@pytest.mark.parametrize(
    "wrong",
    [
        {"|": ["orders defined again"]}, {"|": ["orders"]}, {"|": ["…", "orders"]}, {"?": ["1"]},
        {"!": ["a warning"]}, {"=": ["[]"]}, {"~": ['{"defined": ["more"]}']},
        {"~": ['{"defined": ["orders"], "none": 1}']}, {"=": ["{}", "{}"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_expectation_fails(wrong: dict[str, list[str]], tmp_path: Path) -> None:
    json = " --json" if wrong.keys() & {"=", "~"} else ""
    step = Step("here", f"$ define name=orders message_type=json{json}", wrong)
    with pytest.raises((AssertionError, ValueError)):
        Transcript([step], tmp_path).play()
