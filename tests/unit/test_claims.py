"""The machinery of the claims: what a statements file may say, and what becomes of a claim that is false."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from samebits import checks, claims, cli, runner
from samebits.checks import Seen, check
from samebits.claims import Claim, Malformed

# Registered in this process and in its workers alike, since tests/unit is no package: see `planted`.
PLANTED = """
from samebits.checks import Seen, check

@check("99-true", control="false")
def true(control):
    return Seen(not control, "a planted truth")

@check("99-false", control="also false")
def false(control):
    return Seen(False, "a planted falsehood")

@check("99-weak", control="true as well")
def weak(control):
    return Seen(True, "the control saw the same")

@check("99-race", control="a race that never shows")
def race(control):
    return Seen.same(1, 20, control)

@check("99-broken", control="none")
def broken(control):
    raise ZeroDivisionError("planted")

@check("99-gpu", control="none")
def gpu(control):
    return Seen(not control, "a planted GPU")
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A chapter 99 in a folder of its own that this process and its workers find."""
    (tmp_path / "chapter99.py").write_text(PLANTED)
    (tmp_path / "sitecustomize.py").write_text(
        f"import samebits.checks; samebits.checks.__path__.append({str(tmp_path)!r})"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(checks, "__path__", [*checks.__path__, str(tmp_path)])
    claims.everything()  # or checks that are imported now would be lost with the planted ones
    monkeypatch.setattr(checks, "_CHECKS", {})
    monkeypatch.delitem(sys.modules, "samebits.checks.chapter99", raising=False)
    yield lambda name, **more: Claim(
        f"99-{name}", f"It is {name}.", ("lesson here",), source="A book", **more
    )
    runner.close()


@pytest.fixture
def statements(tmp_path, monkeypatch):
    """Write statements/98.toml, and read it."""
    monkeypatch.setattr(claims, "FOLDER", tmp_path)

    def read(text: str):
        (tmp_path / "98.toml").write_text(text)
        claims.of_chapter.cache_clear()
        return claims.of_chapter("98")

    yield read
    claims.of_chapter.cache_clear()


ENTRY = '[[claim]]\nid = "98-a"\nsays = "A."\nplaces = ["lesson a"]\nsource = "B"\n'


# --- What becomes of a claim -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("true", "verified"),
        ("false", "false"),
        ("weak", "control holds"),
        ("race", "not seen"),
        ("broken", "broken"),
    ],
)
def test_a_check_decides_and_its_control_must_not_hold(planted, name, status):
    assert claims.verify(planted(name)).status == status


def test_evidence_names_versions_and_date(planted):
    evidence = claims.verify(planted("true"))
    assert evidence.date and "verified live here" in evidence.words and evidence.date in evidence.words


def test_a_false_claim_names_what_to_mend(planted):
    claim = planted("false")
    sentence = claims.sentence_to_mend(claim, claims.verify(claim))
    assert (
        "no longer true" in sentence
        and "It is false." in sentence
        and "lesson here in chapter 99" in sentence
    )


def test_a_claim_about_other_versions_is_not_run(planted):
    claim = planted("false", versions=(Requirement("numpy<1"),))
    assert claims.verify(claim).status == "other versions"
    assert claims.verify(planted("false", versions=(Requirement("numpy>1"),))).status == "false"


def test_a_package_that_is_missing_beside_tensorflow_is_another_version(planted, monkeypatch):
    claim = planted("false", versions=(Requirement("keras>=3"),))
    monkeypatch.setattr(claims, "_of_tensorflow", lambda: {"tensorflow": "2.12.0"})
    assert claims.verify(claim).status == "other versions"
    monkeypatch.setattr(claims, "_of_tensorflow", lambda: {"tensorflow": "2.21.0", "keras": "3.12.0"})
    assert claims.verify(claim).status == "false"


@pytest.mark.parametrize("version", ["3.15.0b1", "3.13.2+"])
def test_a_python_that_is_no_release_has_a_version_too(planted, monkeypatch, version):
    monkeypatch.setattr(claims.platform, "python_version", lambda: version)
    assert claims.verify(planted("true", versions=(Requirement("python>=3.11"),))).status == "verified"


def test_without_a_gpu_the_recording_counts_and_else_the_source(planted, monkeypatch, tmp_path):
    monkeypatch.setitem(claims.NEEDS, "cuda", lambda: False)
    monkeypatch.setattr(claims, "RECORDED", tmp_path / "claims.json")
    claim = planted("gpu", needs=("cuda",))
    assert claims.verify(claim).status == "source"
    assert "not verified here" in claims.verify(claim).words
    entry = {"what": "seen", "device": "NVIDIA H200, driver 580", "libraries": {}, "date": "2026-11-29"}
    (tmp_path / "claims.json").write_text(json.dumps({claim.id: entry}))
    assert claims.verify(claim).words == "verified on a GPU (NVIDIA H200, driver 580, 2026-11-29)"


def test_recording_is_refused_without_a_gpu(monkeypatch, tmp_path):
    monkeypatch.setitem(claims.NEEDS, "cuda", lambda: False)
    with pytest.raises(RuntimeError, match="needs an NVIDIA GPU"):
        claims.record(tmp_path / "claims.json")
    assert not (tmp_path / "claims.json").exists()


def test_recording_keeps_what_held_and_needs_a_gpu(planted, monkeypatch, tmp_path):
    monkeypatch.setitem(claims.NEEDS, "cuda", lambda: True)
    monkeypatch.setattr(claims, "_card", lambda: "an imitation")
    found = [planted("gpu", needs=("cuda",)), planted("true"), planted("false", needs=("cuda",))]
    monkeypatch.setattr(claims, "everything", lambda: found)
    assert claims.record(tmp_path / "claims.json") == 1
    assert json.loads((tmp_path / "claims.json").read_text()).keys() == {"99-gpu"}


def test_a_recording_that_breaks_off_keeps_what_it_has(planted, monkeypatch, tmp_path):
    monkeypatch.setitem(claims.NEEDS, "cuda", lambda: True)
    monkeypatch.setattr(claims, "_card", lambda: "an imitation")
    monkeypatch.setattr(claims, "everything", lambda: [planted("gpu", needs=("cuda",))] * 2)
    told = []

    def interrupt(claim, evidence):
        told.append(evidence.status)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        claims.record(tmp_path / "claims.json", interrupt)
    assert json.loads((tmp_path / "claims.json").read_text()).keys() == {"99-gpu"}


def test_a_recording_in_which_nothing_held_leaves_the_last_one(planted, monkeypatch, tmp_path):
    monkeypatch.setitem(claims.NEEDS, "cuda", lambda: True)
    monkeypatch.setattr(claims, "_card", lambda: "an imitation")
    monkeypatch.setattr(claims, "everything", lambda: [planted("false", needs=("cuda",))])
    (tmp_path / "claims.json").write_text("kept")
    assert claims.record(tmp_path / "claims.json") == 0
    assert (tmp_path / "claims.json").read_text() == "kept"


def test_two_checks_of_one_claim_are_refused(planted):
    checks.of_chapter("99")
    with pytest.raises(ValueError, match="Two checks"):
        check("99-true", control="again")(lambda control: Seen(True, ""))


@pytest.mark.parametrize(
    ("seen", "holds"),
    [
        (Seen.varies(3, 20, control=False), True),
        (Seen.varies(1, 20, control=False), None),
        (Seen.varies(1, 20, control=True), False),
        (Seen.varies(2, 20, control=True), True),
        (Seen.same(1, 20, control=False), True),
        (Seen.same(2, 20, control=False), False),
        (Seen.same(1, 20, control=True), None),
        (Seen.same(2, 20, control=True), False),
    ],
)
def test_a_race_that_does_not_show_is_no_evidence(seen, holds):
    assert seen.holds is holds


# --- Files -----------------------------------------------------------------------------------------------


def test_a_claim_is_read(statements):
    (claim,) = statements(ENTRY + 'versions = "torch>=2.10,<3, numpy>=2"\n[claim.values]\nx = "3 ms"\n')
    assert claim.says == "A." and claim.chapter == "98" and claim.values == {"x": "3 ms"}
    assert claims.value("98-a.x") == "3 ms"
    assert claims.filled("It took {98-a.x}; {0} stays.") == "It took 3 ms; {0} stays."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ENTRY + ENTRY, "two claims 98-a"),
        (ENTRY.replace('source = "B"\n', ""), "neither a check nor a source"),
        (ENTRY.replace("98-a", "97-a"), "begins with 98-"),
        (ENTRY + 'sauce = "C"\n', "unknown entry 'sauce'"),
        (ENTRY.replace('"A."', '" "'), "says nothing"),
        (ENTRY.replace('["lesson a"]', "[]"), "places where it is said"),
        (ENTRY + 'needs = "luck"\n', "needs 'luck'"),
        (ENTRY + 'versions = "torch>>2"\n', "versions that cannot be read"),
        (ENTRY + 'versions = "pytorch>=2"\n', "versions of 'pytorch'"),
        (ENTRY + "[claim.values]\nx = 3\n", "no text"),
        ("[[claim", "cannot be read"),
        (ENTRY.replace("[[claim]]", "[[claims]]"), "holds 'claims'"),
        (ENTRY.replace("[[claim]]", "[claim]"), "needs [[claim]]"),
        ("claim = 3\n", "needs [[claim]]"),
        ('claim = ["98-a"]\n', "needs [[claim]]"),
        (ENTRY + 'values = "3 ms"\n', "a table of texts as its values"),
        (ENTRY + '[claim.values]\nHopper-2 = "3 ms"\n', "a value called 'Hopper-2'"),
        (ENTRY + '[claim.values]\nx = " "\n', "a value x that is empty"),
        (ENTRY + 'versions = ["torch"]\n', "a text as its versions"),
        (ENTRY + 'needs = ["cuda"]\n', "a text as its needs"),
        (ENTRY.replace('"B"', "3"), "a text as its source"),
    ],
)
def test_a_malformed_file_gets_one_sentence(statements, text, words):
    with pytest.raises(Malformed, match=re.escape(words)):
        statements(text)


def test_an_unknown_value_is_refused(statements):
    statements(ENTRY)
    with pytest.raises(Malformed, match="No claim holds the value 98-a.y"):
        claims.filled("{98-a.y}")


@pytest.mark.parametrize("reference", ["{98-a}", "{98-A.x}", "{98-a.X}", "{98-a.}", "{98-a.x }"])
def test_what_was_meant_as_a_reference_is_never_shown(statements, reference):
    statements(ENTRY + '[claim.values]\nx = "3 ms"\n')
    with pytest.raises(Malformed, match=re.escape(reference.strip("{}"))):
        claims.filled(f"It took {reference}.")
    assert claims.filled("`{98}`, `{2:04d}` and `{x}` stay.") == "`{98}`, `{2:04d}` and `{x}` stay."


# --- The command -----------------------------------------------------------------------------------------


def test_the_command_prints_and_writes_and_fails_for_a_false_claim(planted, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(claims, "everything", lambda: [planted("true"), planted("false")])
    assert cli.main(["claims", "--write", str(tmp_path / "STATUS.md")]) == 1
    told = capsys.readouterr().out
    assert "2 claims: 1 verified live here; 1 no longer true." in told and "To mend:" in told
    monkeypatch.setattr(claims, "everything", lambda: [planted("true")])
    assert cli.main(["claims"]) == 0


def test_a_file_that_cannot_be_read_is_one_sentence_for_whoever_asks(statements, capsys, monkeypatch):
    with pytest.raises(Malformed):
        statements("[[claim")
    monkeypatch.setattr(claims, "everything", lambda: list(claims.of_chapter("98")))
    assert cli.main(["claims"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("statements/98.toml cannot be read") and error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [["--chapter", "00", "--write"], ["--chapter", "00", "--record"], ["--record", "x.json", "--write"]],
)
def test_what_would_do_half_of_what_was_asked_is_refused_before_anything_runs(
    words, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(claims, "verify", lambda claim: pytest.fail("It was begun."))
    with pytest.raises(SystemExit):
        cli.main(["claims", *words, "page"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_refused_before_anything_runs(monkeypatch, tmp_path, capsys):
    page = tmp_path / "STATUS.md"
    page.write_text("kept")
    allowed = cli.os.access
    monkeypatch.setattr(cli.os, "access", lambda path, mode: path != page and allowed(path, mode))
    with pytest.raises(SystemExit):
        cli.main(["claims", "--write", str(page)])
    assert "no file in a folder that can be written" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_full_disk_hides_no_false_claim(planted, monkeypatch, capfd):
    monkeypatch.setattr(claims, "everything", lambda: [planted("false")])
    assert cli.main(["claims", "--write", "/dev/full"]) == 1
    told = capfd.readouterr()
    assert "To mend:" in told.out and "could not be written" in told.err


def test_a_program_of_a_check_that_fails_says_how():
    for program, words in {
        "import os; os.kill(os.getpid(), 9)": "exit code -9",
        "raise ValueError('planted')": "ValueError: planted",
        "import sys; sys.stderr.buffer.write(b'\\xff!'); sys.exit(1)": "!",
    }.items():
        with pytest.raises(RuntimeError, match=words):
            checks.in_new_process(program)
    assert checks.in_new_process("import sys; sys.stdout.buffer.write(b'\\xff 1')").endswith(" 1")


def test_an_unknown_chapter_gets_the_nearest(capsys):
    assert cli.main(["claims", "--chapter", "44"]) == 2
    assert "There is no chapter '44'" in capsys.readouterr().err


def test_the_page_has_each_claim_with_its_status():
    page = claims.status_page(
        [(claim, claims.Evidence("source", claim.source)) for claim in claims.everything()]
    )
    assert page.startswith("# Status of the claims")
    assert all(claim.says.replace("|", "\\|") in page for claim in claims.everything())
