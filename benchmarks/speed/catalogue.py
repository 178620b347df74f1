"""The parts of the suite, in the order of the page."""

from benchmarks.speed import compiling, growth, profile, roofline, rows, steps, wall
from benchmarks.speed.part import Part

PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        steps.PART,
        wall.PART,
        growth.PART,
        rows.PART,
        compiling.PART,
        profile.PART,
        growth.RESTARTS_PART,
        roofline.PART,
    )
}
