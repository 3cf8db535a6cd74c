"""The table of mutants fits the code: every line that it changes is there once, and its tests exist."""

import importlib.util
import sys
import tomllib

from tests.support.paths import CHECKOUT

TABLE = tomllib.loads((CHECKOUT / "tools" / "mutants.toml").read_text())
spec = importlib.util.spec_from_file_location("mutants", CHECKOUT / "tools" / "mutants.py")
mutants = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutants)


def test_every_named_line_is_there_once_and_its_mutant_compiles():
    named = list(mutants.named_mutants(TABLE))
    assert len(named) >= 40
    for mutant in named:
        compile(mutant.applied(), mutant.file, "exec")


def test_every_test_that_the_table_names_exists():
    rows = [test for row in TABLE["named"] for test in row["tests"]]
    for test in {*rows, *(test for tests in TABLE["tests"].values() for test in tests)}:
        path, _, name = test.partition("[")[0].partition("::")
        assert (CHECKOUT / path).exists(), test
        assert not name or f"def {name}" in (CHECKOUT / path).read_text(), test


def test_rules_change_what_computes_and_no_words(tmp_path, monkeypatch):
    code = (
        'def f(a: Float[Array, "2"], b=3):\n'
        '    """Adds 1."""\n'
        "    if a < b and not b:\n"
        '        raise ValueError(f"{a + 1}")\n'
        "    return min(a, key=b, default=None) + 0.5\n"
    )
    (tmp_path / "m.py").write_text(code)
    monkeypatch.setattr(mutants, "CHECKOUT", tmp_path)
    found = {(mutant.old, mutant.new) for mutant in mutants.mutants_of("m.py", ())}
    assert {("<", "<="), ("and", "or"), ("not ", ""), ("+", "-"), ("min", "max"), ("0.5", "1.0")} < found
    assert ("key=b, ", "") in found and ("default=None", "") in found and ("3", "4") in found
    assert not any(
        "raise" in mutant.line()[1] or "Adds" in mutant.line()[1] for mutant in mutants.mutants_of("m.py", ())
    )
