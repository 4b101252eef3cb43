"""Run Eclipse Paho's interoperability suite in a separate process: ``python paho_suite.py DIRECTORY MODULE PORT``.

DIRECTORY is `interoperability` of a checkout of paho.mqtt.testing, MODULE its client_test (MQTT 3.1.1) or client_test5.
The last printed line is JSON: the problem of each test, null if it passed.
"""

from __future__ import annotations

import json
import sys
import unittest
from importlib import import_module

TOPICS = ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")
WILDCARDS = ("TopicA/+", "+/C", "#", "/#", "/+", "+/+", "TopicA/#")
PREFIXES = {"client_test": "", "client_test5": "client_test5/"}


class Verdicts(unittest.TestResult):
    """Results by name of the test, without skipped tests."""

    def __init__(self) -> None:
        super().__init__()
        self.verdicts: dict[str, str | None] = {}

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        wrong = [text for case, text in (*self.failures, *self.errors) if case is test]
        self.verdicts[test.id().rpartition(".")[2]] = wrong[0] if wrong else None


def main(directory: str, name: str, port: str) -> None:
    sys.path.insert(0, directory)
    module = import_module(name)
    prefix = PREFIXES[name]
    # Variables that the suite's main program sets.
    globals_of_it = vars(module)
    globals_of_it["host"], globals_of_it["port"] = "127.0.0.1", int(port)
    globals_of_it["topic_prefix"] = prefix
    globals_of_it["topics"] = [prefix + topic for topic in TOPICS]
    globals_of_it["wildtopics"] = [prefix + topic for topic in WILDCARDS]
    globals_of_it["nosubscribe_topics"] = ("test/nosubscribe",)
    verdicts = Verdicts()
    unittest.defaultTestLoader.loadTestsFromTestCase(module.Test).run(verdicts)
    # If the setup failed, there is no test with its result.
    results = verdicts.verdicts or {"setUpClass": str(verdicts.errors)}
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
