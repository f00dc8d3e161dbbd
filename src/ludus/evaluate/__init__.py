"""Candidates on the same held-out tasks -> a summary with intervals."""

from ludus.data.stage_module import make_callable
from ludus.evaluate.candidates import Candidate, candidates_of
from ludus.evaluate.evaluating import evaluate
from ludus.evaluate.evaluation import Evaluation, Score

__all__ = ["Candidate", "Evaluation", "Score", "candidates_of", "evaluate"]

make_callable(__name__)
