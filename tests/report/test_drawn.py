"""Compare charts and tables of a report and of a sweep's page with the reviewed ones that make_page.py keeps."""

import json

from tests.support.golden.make_page import GOLDEN, digests, pages_of


def test_charts_and_tables_match_the_inspected_ones(tmp_path):
    wanted, found = json.loads(GOLDEN.read_text()), digests(pages_of(tmp_path))
    assert list(found) == list(wanted)
    # Another matplotlib may place the words of a chart otherwise.
    kinds = (": table:", ": figure:", *([": svg:"] if found["matplotlib"] == wanted["matplotlib"] else []))
    changed = [name for name, digest in found.items() if wanted[name] != digest and any(k in name for k in kinds)]
    assert not changed, "look at these; if they are right, run tests/support/golden/make_page.py"
