"""The judge refutes a planted leak by what its file does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import judged_leaks
import pytest
from judging import judged, refuted_by

from clipnoise.errors import UserError

TEMPLATE = Path(__file__).parents[2] / "reports" / "templates" / "audit.typ"

# In short, there is one B, and no run is longer than 60 steps.
IN_FULL = ("a tenth of the noise for some B", "the clean mean after 600 steps")


@pytest.mark.long
@pytest.mark.parametrize("name", judged_leaks.PLANTED)
def test_a_planted_leak_is_refuted_by_what_the_file_does(
    name: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In full, but nothing beside.
    monkeypatch.setattr("clipnoise.audit.judge.verdict._controls", lambda cache: [])
    text, checks = judged_leaks.PLANTED[name]
    result = judged(text, tmp_path, cache, whole=name in IN_FULL)
    assert result.verdict == "refuted"
    assert refuted_by(result) & checks, result.refuted_by


@pytest.mark.quick(name=["SystemExit in an update"])
@pytest.mark.parametrize("name", judged_leaks.ENDINGS)
def test_a_file_that_ends_its_process_is_never_found_sound(
    name: str, tmp_path: Path, cache: Path
) -> None:
    """It is refuted, or it is no method; the judge itself goes on."""
    try:
        result = judged(judged_leaks.ENDINGS[name], tmp_path, cache)
    except UserError:
        return
    assert result.verdict == "refuted"


@pytest.mark.long
def test_a_file_in_the_plug_in_folder_cannot_end_the_judge_with_success(tmp_path: Path) -> None:
    """The folder that config.yaml names is not imported by the process that judges."""
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "mine.py").write_text("import sys\nprint('imported')\nsys.exit(0)\n")
    (tmp_path / "config.yaml").write_text("plugins: plugins\n")
    program = str(Path(sys.executable).parent / "clipnoise")
    words = [program, "judge", "plugins/mine.py", "--template", str(TEMPLATE)]
    environment = {name: os.environ[name] for name in os.environ if name != "CLIPNOISE_PLUGINS"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "mine.py: line 3: SystemExit: 0" in done.stderr
    assert "imported" not in done.stdout + done.stderr
