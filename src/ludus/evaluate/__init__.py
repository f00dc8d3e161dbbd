"""Candidates on the same held-out tasks -> a summary with intervals."""

from ludus.data.stage_module import make_callable
from ludus.evaluate.candidates import Candidate, parse_candidates
from ludus.evaluate.evaluating import evaluate
from ludus.evaluate.evaluation import Evaluation, CandidateScore

__all__ = ["Candidate", "Evaluation", "CandidateScore", "parse_candidates", "evaluate"]

make_callable(__name__)
