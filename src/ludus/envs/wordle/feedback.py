"""What a guess reveals about the secret, as one mark per letter."""

from __future__ import annotations

GREEN, YELLOW, MISS = "G", "Y", "X"


def mark_guess(guess: str, secret: str) -> str:
    """Mark every letter of the guess, for example `mark("speed", "abide") == "XXYXY"`.

    A letter is marked as often as the secret has it: first where it is in place, then from the
    left. Both words have the same length.
    """
    pairs = list(zip(guess, secret, strict=True))
    spare = [there for here, there in pairs if here != there]
    marks = ""
    for here, there in pairs:
        if here == there:
            marks += GREEN
        elif here in spare:
            spare.remove(here)
            marks += YELLOW
        else:
            marks += MISS
    return marks
