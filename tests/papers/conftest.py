"""Cases of the suites."""

import pytest

from tests.papers.claim_suite import ClaimSuite


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A case each of what a suite of claims lists."""
    suite = metafunc.cls
    if suite is None or not issubclass(suite, ClaimSuite):
        return
    if "known_name" in metafunc.fixturenames:
        metafunc.parametrize("known_name", list(suite.known))
    if "case" in metafunc.fixturenames:
        ids = [f"{case[0]}-{case[2]}" for case in suite.changes]
        metafunc.parametrize("case", suite.changes, ids=ids)
    if "gone" in metafunc.fixturenames:
        ids = [str(rows) for rows, _ in suite.missing]
        metafunc.parametrize("gone", suite.missing, ids=ids)
