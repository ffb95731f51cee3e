#!/usr/bin/env python3
"""Tests of the classic peers, in a few seconds and on free ports of the loopback address.

python3 tests/classic/selftest.py [-k PATTERN]
"""

import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator

from selftest_pairs import Limits, Minimal, Oddities, Trio  # noqa: F401
from selftest_parts import Choices, Json, WireVectors  # noqa: F401

AT_A_TIME = 4  # most of a test is waiting for a process to start


def flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        yield from flat(test) if isinstance(test, unittest.TestSuite) else [test]


class Runner(unittest.TextTestRunner):
    """Runs several tests at a time and reports when all are done."""

    def run(self, suite: unittest.TestSuite) -> unittest.TestResult:
        def one(test: unittest.TestCase) -> unittest.TestResult:
            result = unittest.TestResult()
            test.run(result)
            return result

        whole = self._makeResult()
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            for result in pool.map(one, flat(suite)):
                whole.testsRun += result.testsRun
                whole.failures += result.failures
                whole.errors += result.errors
                whole.skipped += result.skipped
        whole.printErrors()
        skipped = "".join(f"; skipped: {why}" for _, why in whole.skipped)
        failed = len(whole.failures) + len(whole.errors)
        print(f"classic peers: {whole.testsRun} tests, {failed} failures{skipped}")
        return whole


if __name__ == "__main__":
    unittest.main(testRunner=Runner)
