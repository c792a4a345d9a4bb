"""A home that stands at another path than the one where its checkpoint was written.

Spark keeps one absolute path in a stateful query's checkpoint, that of the schema of its state, in
`<broker>/state/<operator>/_metadata/v2/<batch>`: a line that names the version, then JSON. In a
home that was moved, or given back elsewhere, the path leads nowhere, and the query fails at its
first batch; in a copy it leads into the original. So what does not lead here is written anew before
Spark reads it. Nothing else in a home knows where it stands. A checkpoint on an object store has
its own address, wherever the home is.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..protocol.folders import Folder

METADATA = "*/state/*/_metadata/v2/*"
SCHEMA = "_stateSchema"
LOCAL = "file:"
DRAFT = "moved.draft"


def follow(checkpoint: Folder) -> int:
    """Let the brokers' checkpoints name themselves; gives how many files did not. Each is written
    whole or not at all, so it may be interrupted. Raises OSError, and ValueError and KeyError for
    what is not Spark's."""
    if not isinstance(checkpoint, Path):
        return 0
    return sum(
        _follow(file, checkpoint / DRAFT)
        for file in checkpoint.glob(METADATA)
        if file.name.isdigit()
    )


def _follow(file: Path, draft: Path) -> bool:
    """draft: not beside the file, where Spark would take it for another batch's."""
    version, _, text = file.read_text().partition("\n")
    about = json.loads(text)
    operator = file.parents[2].absolute()
    follows = False
    for store in about["stateStoreInfo"]:
        said = store["stateSchemaFilePaths"]
        store["stateSchemaFilePaths"] = [_here(path, operator) for path in said]
        follows = follows or store["stateSchemaFilePaths"] != said
    if not follows:
        return False
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # else Spark finds it damaged
    draft.write_text(f"{version}\n{json.dumps(about, separators=(',', ':'), ensure_ascii=False)}")
    draft.replace(file)
    return True


def _here(path: str, operator: Path) -> str:
    """Where a schema is now; as it was said where that is the same file."""
    said = Path(path.removeprefix(LOCAL))
    here = operator / SCHEMA / path.rpartition(f"/{SCHEMA}/")[2]
    if not here.exists() or (said.exists() and said.samefile(here)):
        return path
    return f"{LOCAL}{here}"
