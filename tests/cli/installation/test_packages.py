"""Requirements and extras, against the packages that are installed here."""

from __future__ import annotations

from collections.abc import Iterable

from ludus.cli.installation.findings import Finding
from ludus.cli.installation.packages import check_packages


def findings(required: Iterable[str]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_packages(required)}


def test_this_installation_is_complete() -> None:
    found = {finding.subject: finding.status for finding in check_packages()}
    assert found["packages"] == found["[train]"] == found["[serve]"] == "ok"
    assert "[all]" not in found


def test_a_missing_or_old_package_that_every_command_needs_is_broken() -> None:
    found = findings(["no-such-package>=1", "pydantic<1", "rich"])["packages"]
    assert found.status == "broken"
    assert "no-such-package is not installed" in found.detail and "<1 is needed" in found.detail


def test_a_missing_extra_names_the_command_that_installs_it() -> None:
    found = findings(["no-such-package>=1; extra == 'hub'"])["[hub]"]
    assert (found.status, found.advice) == ("missing", "pip install 'ludus-rl[hub]'")


def test_an_extra_with_a_wrong_version_is_broken() -> None:
    found = findings(["rich<0.1; extra == 'hub'"])["[hub]"]
    assert found.status == "broken" and "<0.1 is needed" in found.detail


def test_an_incomplete_extra_names_what_is_missing() -> None:
    required = ["rich; extra == 'hub'", "no-such-package; extra == 'hub'"]
    found = findings(required)["[hub]"]
    assert (found.status, found.detail) == ("missing", "without no-such-package")
