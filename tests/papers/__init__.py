"""Tests of the papers. What the suites assert says what it found, as in a test's own file."""

import pytest

pytest.register_assert_rewrite("tests.papers.claim_suite", "tests.papers.drawn")
