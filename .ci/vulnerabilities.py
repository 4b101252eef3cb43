"""Print the result of pip-audit, whose JSON is read from stdin. End with 1 if a dependency has a known vulnerability.

If the data about vulnerabilities is not available, this is printed, and is no failure.
"""

from __future__ import annotations

import json
import sys

# Packages of the environment that are not dependencies.
INSTALLERS = frozenset(("pip", "setuptools", "wheel", "tandemmq"))


def main() -> int:
    text = sys.stdin.read()
    if not text.strip():
        print("NOT AUDITED: pip-audit could not get the data about vulnerabilities")
        return 0
    packages = [each for each in json.loads(text)["dependencies"] if each["name"] not in INSTALLERS]
    unknown = [each["name"] for each in packages if "skip_reason" in each]
    if unknown:
        print(f"NOT AUDITED, because there is no data: {len(unknown)} of {len(packages)}: {', '.join(unknown)}")
    found = [
        f"{each['name']} {each['version']}: {problem['id']}, fixed in {', '.join(problem['fix_versions']) or 'none'}"
        for each in packages
        for problem in each.get("vulns", ())
    ]
    if len(unknown) < len(packages):
        print("\n".join(found) or f"no known vulnerability in {len(packages) - len(unknown)} packages")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
