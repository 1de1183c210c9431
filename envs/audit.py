"""Ask an advisory service about every locked package: `make audit-dependencies`.

Exit code 1 when a package has a known vulnerability. Packages that the service could not be asked
about are counted and said, never taken for sound; without a network that is all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).with_name("requirements.lock")
AUDITOR = ("uv", "tool", "run", "--quiet", "pip-audit@2.10.1")
OPTIONS = ("--disable-pip", "--format", "json", "--progress-spinner", "off", "--timeout", "10")


def main() -> int:
    """Ask, print the answer, and return the exit code."""
    words = [*AUDITOR, "--requirement", str(LOCK), *OPTIONS, *sys.argv[1:]]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    code, text = verdict(done.stdout, done.stderr)
    print(text)
    return code


def verdict(report: str, errors: str) -> tuple[int, str]:
    """Turn pip-audit's report into an exit code and a text.

    Args:
        report: its JSON; empty or broken when it failed.
        errors: what it printed besides.

    Returns:
        1 with a line for each vulnerability, or 0 with how many packages were asked about.
    """
    try:
        packages = json.loads(report)["dependencies"]
    except (ValueError, KeyError):
        reason = (errors.strip().splitlines() or ["no reason given"])[-1]
        return 0, f"NOT AUDITED: the advisory service could not be asked ({reason})"
    skipped = sum("skip_reason" in package for package in packages)
    lines = [
        f"{package['name']} {package['version']}: {found['id']}"
        f" (fixed in {', '.join(found['fix_versions']) or 'no version yet'})"
        for package in packages
        for found in package.get("vulns", ())
    ]
    lines.append(f"{len(packages) - skipped} of {len(packages)} locked packages audited")
    if skipped:
        lines.append(f"NOT AUDITED: {skipped} packages; the advisory service does not answer.")
    return int(len(lines) > 1 + bool(skipped)), "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
