"""The doctor's lines about sampling."""

from __future__ import annotations

from spanreplay.cli.diagnose import check_environment


def test_n3_the_doctor_says_which_units_are_kept() -> None:
    """The doctor lists rules and users that are set, and an unusable setting; nothing if everything is kept."""
    set_well = {"SPANREPLAY_SAMPLE": "errors,0.1", "SPANREPLAY_SAMPLE_KEEP_USERS": "ann,bob"}
    (found,) = check_environment(set_well)
    assert (found.level, found.subject) == ("ok", "SPANREPLAY_SAMPLE")
    assert "errors,0.1" in found.message
    assert "2 users" in found.message
    (refused,) = check_environment({"SPANREPLAY_SAMPLE": "erors"})
    assert refused.level == "warn"
    assert "'erors' is not a rule: every unit is kept" in refused.message
    assert refused.hint.startswith("use always")
    assert check_environment({}) == []
