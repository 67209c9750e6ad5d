"""Django's test runner, which also writes what came of each test."""

import os
import unittest

from django.test.runner import DiscoverRunner


class Result(unittest.TextTestResult):
    def stopTest(self, test):
        super().stopTest(test)
        outcome = getattr(self, "outcome", "passed")
        self.outcome = "passed"
        with open(os.environ["PLUVIO_RESULTS"], "a") as results:
            results.write(f"{outcome}\t{test.id()}\n")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome = "skipped"

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.outcome = "failed"

    def addError(self, test, err):
        super().addError(test, err)
        self.outcome = "failed"

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.outcome = "failed"

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.outcome = "failed"


class Runner(DiscoverRunner):
    def get_resultclass(self):
        return Result
