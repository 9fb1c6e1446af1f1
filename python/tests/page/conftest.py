"""The browser that the tests of the page share, and where they find their modules."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Test modules are imported by path, so their folder is not searched.
sys.path.insert(0, str(Path(__file__).parent))

import browser as chromium
from browser import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of this folder."""
    program = chromium.find()
    if program is None:
        pytest.skip("no Chromium: the page is not looked at (apt-get install chromium)")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
