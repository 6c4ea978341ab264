"""Private folders in the temporary folder, for what may not outlive its process: environments, keys of a kubeconfig.

What a kill leaves of them is swept up by the next gpufix of this user (``world.runs.sweep``).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE = "gpufix-run-"
"""How they begin."""
OWNER = "gpufix.lock"
"""The file in it that its gpufix keeps locked for as long as it lives, in whichever process namespace that is."""
_UNBORN = "gpufix-new-"


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder that only this user can enter; gone when the block ends."""
    # the process in its name: what a kill leaves is swept up by the next run, and nobody else's is
    made = Path(tempfile.mkdtemp(prefix=_UNBORN))
    owner = _own(made / OWNER)
    folder = made.rename(made.with_name(f"{PRIVATE}{os.getpid()}-{made.name.removeprefix(_UNBORN)}"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if owner is not None:
            os.close(owner)


def _own(path: Path) -> int | None:
    """A new file, locked; None, and no file, where the temporary folder has no locks."""
    owner = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(owner)
        path.unlink()
        return None
    return owner
