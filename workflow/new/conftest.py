"""The tests of this folder find its plug-ins, wherever they are started."""

from __future__ import annotations

import os
from pathlib import Path

os.environ["CLIPNOISE_PLUGINS"] = str(Path(__file__).parent)
