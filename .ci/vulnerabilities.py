"""Says what pip-audit found, whose JSON comes on stdin. Ends with 1 for a known vulnerability of a dependency.

Where the data about vulnerabilities cannot be had, it says so: that is no failure of the tree.
"""

from __future__ import annotations

import json
import sys

# Of the environment, not of ours.
INSTALLERS = frozenset(("pip", "setuptools", "wheel", "tandemmq"))


def main() -> int:
    text = sys.stdin.read()
    if not text.strip():
        print("NOT AUDITED: pip-audit reached no data about vulnerabilities")
        return 0
    packages = [each for each in json.loads(text)["dependencies"] if each["name"] not in INSTALLERS]
    unknown = [each["name"] for each in packages if "skip_reason" in each]
    if unknown:
        print(f"NOT AUDITED, for want of data: {len(unknown)} of {len(packages)}: {', '.join(unknown)}")
    found = [
        f"{each['name']} {each['version']}: {problem['id']}, mended in {', '.join(problem['fix_versions']) or 'none'}"
        for each in packages
        for problem in each.get("vulns", ())
    ]
    if len(unknown) < len(packages):
        print("\n".join(found) or f"no known vulnerability in {len(packages) - len(unknown)} packages")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
