"""Evaluation of candidates on the same held-out tasks, with confidence intervals."""

from ludus.evaluation.candidates import Candidate, parse_candidates
from ludus.evaluation.config import EvalConfig
from ludus.evaluation.pipeline import evaluate, evaluate_sync
from ludus.evaluation.results import CandidateScore, Evaluation

__all__ = [
    "Candidate",
    "CandidateScore",
    "EvalConfig",
    "Evaluation",
    "evaluate",
    "evaluate_sync",
    "parse_candidates",
]
