"""The feedback to a guess: one mark per letter."""

from __future__ import annotations

GREEN, YELLOW, MISS = "G", "Y", "X"


def mark_guess(guess: str, secret: str) -> str:
    """Mark every letter of the guess, for example `mark("speed", "abide") == "XXYXY"`.

    A letter is marked as often as the secret has it: first where it is in place, then from the
    left. Both words have the same length.
    """
    pairs = list(zip(guess, secret, strict=True))
    unmatched = [actual for guessed, actual in pairs if guessed != actual]
    marks = ""
    for guessed, actual in pairs:
        if guessed == actual:
            marks += GREEN
        elif guessed in unmatched:
            unmatched.remove(guessed)
            marks += YELLOW
        else:
            marks += MISS
    return marks
