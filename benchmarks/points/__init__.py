"""The paper, point by point: what it says, where that is here, and what we get."""
