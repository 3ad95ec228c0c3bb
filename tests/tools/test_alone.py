"""One notebook alone, where a home or a folder cannot be written: it starts, or one sentence says what is wrong."""

from pathlib import Path

import pytest

from tests.tools.test_setup_cell import found, last_line, repository, run

__all__ = ["repository"]  # a fixture
NOWHERE = "/proc/nobody"  # which nobody can make


@pytest.mark.parametrize("home", [NOWHERE, ""])
def test_a_home_that_cannot_be_written_is_not_needed(tmp_path, repository, home):  # noqa: F811
    place = {"HOME": home, "XDG_CONFIG_HOME": home, "USERPROFILE": home}
    assert found(run(tmp_path, SYNTH_REPO=repository, SYNTH_REF="v1", **place)) == tmp_path.resolve() / "synthesizers"
    again = run(tmp_path, SYNTH_REPO="http://127.0.0.1:9/no.git", **place)  # a second start, without a network
    assert found(again) == tmp_path.resolve() / "synthesizers" and again.stderr == ""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="there is no /proc, in which nobody may write")
def test_a_folder_that_cannot_be_written_is_named_in_one_sentence(tmp_path, repository):  # noqa: F811
    message = last_line(run(tmp_path, "import os\nos.chdir('/proc')", SYNTH_REPO=repository, SYNTH_REF="v1"))
    assert "Error: " in message and "/proc" in message and message.endswith(".")
