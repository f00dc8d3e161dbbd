"""Candidates on the same held-out tasks -> a summary with intervals."""

from ludus.data.stage_module import make_callable
from ludus.evaluate.candidates import Candidate, parse_candidates
from ludus.evaluate.evaluating import evaluate
from ludus.evaluate.evaluation import CandidateScore, Evaluation

__all__ = ["Candidate", "CandidateScore", "Evaluation", "evaluate", "parse_candidates"]

make_callable(__name__)
