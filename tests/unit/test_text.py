import pytest

from bernflow.errors import ArgumentError
from bernflow.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("good", "good"),
        ("größer ✔ 平均", "größer ✔ 平均"),
        ("\x1b[2Jgood", r"\x1b[2Jgood"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\rb\x08\x7f\x9b1m", r"a\rb\x08\x7f\x9b1m"),
        ("evil\u202egnp.exe", r"evil\u202egnp.exe"),
        ("a\u2028b\ud800", r"a\u2028b\ud800"),
        ("a\nb", r"a\nb"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text, shown):
    assert printable(text) == shown
    assert printable(shown) == shown


def test_line_breaks_can_stay():
    assert printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


def test_errors_are_shown_and_not_obeyed():
    error = ArgumentError("line 1\nline 2 \x1b[31mred")
    assert str(error) == "line 1\nline 2 \\x1b[31mred"
    assert error.args[0].endswith("\x1b[31mred")
