import pytest


@pytest.fixture
def records():
    """Make records of one part, {(case, subject): figures}, the same in every round."""

    def make(part, figures, rounds=2):
        return [
            {"part": part, "case": case, "subject": subject, "round": number, "status": "ok", "run": "r", **one}
            for number in range(rounds)
            for (case, subject), one in figures.items()
        ]

    return make
