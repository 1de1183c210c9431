"""Write the conda file and the container recipe from the lock files; `make lock` runs it.

The conda file holds every pin and hash of envs/requirements.lock itself, because Snakemake copies
it elsewhere before use. The container installs the lock, after checking its digest.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Of the image for all platforms; `docker buildx imagetools inspect NAME:TAG` prints it.
IMAGE = "sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b"  # 1 October 2026
NOTE = "# Made by `make lock` from envs/requirements.lock; change envs/generate.py instead."

CONDA = """\
{note}
#
#   conda env create --file envs/environment.yaml
#   conda activate clipnoise
#   python -m pip install --no-deps --editable .
name: clipnoise
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python={python}
  - pip
  - pip:
{requirements}
"""

CONTAINER = """\
{note}
#
#   docker build --file envs/Containerfile --tag clipnoise .
#   docker run --rm --volume "$PWD/results:/clipnoise/results" clipnoise snakemake --cores all
#
# It runs as user 1000, who must be allowed to write into ./results. Podman takes the same words.
# For Apptainer, convert the image:
#
#   docker save clipnoise --output clipnoise.tar
#   apptainer build clipnoise.sif docker-archive:clipnoise.tar
FROM python:{python}-slim-bookworm@{image}

ENV PATH=/opt/clipnoise/bin:$PATH PYTHONUNBUFFERED=1
RUN python -m venv /opt/clipnoise

COPY envs/requirements.lock envs/installer.lock /tmp/envs/
RUN echo "{digest}  /tmp/envs/requirements.lock" | sha256sum --check
RUN python -m pip install --no-cache-dir --require-hashes --requirement /tmp/envs/installer.lock \\
    && uv pip sync --no-cache --python /opt/clipnoise/bin/python --require-hashes \\
        --compile-bytecode --build-constraints /tmp/envs/requirements.lock \\
        /tmp/envs/requirements.lock

RUN useradd --uid 1000 --create-home clipnoise
WORKDIR /clipnoise
COPY --chown=1000 . .
RUN chown 1000 /clipnoise \\
    && uv pip install --no-cache --python /opt/clipnoise/bin/python --no-deps --editable .
USER 1000
CMD ["clipnoise"]
"""


def requirements(lock: str) -> list[str]:
    """Return the requirements of a lock file, each on a line: version, marker and hashes.

    Args:
        lock: the text of the file, in which a requirement continues over lines that end in a `\\`.
    """
    joined = re.sub(r"\s*\\\n\s*", " ", lock)
    return [line for line in joined.splitlines() if re.match(r"[A-Za-z0-9]", line)]


def recipes(folder: Path = HERE) -> dict[str, str]:
    """Return the text of each recipe by file name.

    Args:
        folder: the folder of the lock files; pyproject.toml lies above it.
    """
    project = tomllib.loads((folder.parent / "pyproject.toml").read_text())["project"]
    lock = (folder / "requirements.lock").read_bytes()
    pins = requirements(lock.decode())
    facts = {
        "note": NOTE,
        "image": IMAGE,
        "digest": hashlib.sha256(lock).hexdigest(),
        "python": project["requires-python"].removeprefix(">="),
        "requirements": "\n".join(f"      - {json.dumps(pin)}" for pin in pins),
    }
    return {
        "environment.yaml": CONDA.format(**facts),
        "Containerfile": CONTAINER.format(**facts),
    }


if __name__ == "__main__":
    for name, text in recipes().items():
        (HERE / name).write_text(text)
