from __future__ import annotations

import pytest

from ludus.environment.mixture import parse_mixture
from ludus.environment.task_buckets import Bucket, build_buckets, parse_axes, select_environments
from ludus.errors import ConfigError


def buckets_of(env: str, *texts: str, **task: object) -> tuple[Bucket, ...]:
    axes = parse_axes(texts, option="sweep")
    environments = select_environments(parse_mixture(env), axes, option="sweep")
    return build_buckets(environments, axes, task, option="sweep")


def test_buckets_are_the_product_from_easy_to_hard() -> None:
    buckets = buckets_of("catch", "rows=5,10", "columns=3,5")
    assert [each.task for each in buckets] == [
        {"rows": 5, "columns": 3},
        {"rows": 5, "columns": 5},
        {"rows": 10, "columns": 3},
        {"rows": 10, "columns": 5},
    ]
    assert buckets[1].label == "rows=5 columns=5"


def test_fields_of_a_config_are_merged_into_it() -> None:
    config = {"min_terms": 2}
    buckets = buckets_of("reasoning_gym:chain_sum", "max_terms=2..3", dataset_config=config)
    assert [each.task for each in buckets] == [
        {"dataset_config": {"min_terms": 2, "max_terms": terms}} for terms in (2, 3)
    ]
    dotted = buckets_of("reasoning_gym:chain_sum", "dataset_config.max_terms=2..3")
    assert dotted[0].task == {"dataset_config": {"max_terms": 2}}


def test_variants_are_environments() -> None:
    buckets = buckets_of("reasoning_gym", "variant=chain_sum,gcd")
    assert [(each.spec, each.task, each.label) for each in buckets] == [
        ("reasoning_gym:chain_sum", {}, "variant=chain_sum"),
        ("reasoning_gym:gcd", {}, "variant=gcd"),
    ]
    both = buckets_of("reasoning_gym", "variant=chain_sum,products", "max_terms=2..3")
    # Variants are not ordered by difficulty, so that the easy values of all come first.
    assert [each.label for each in both][:2] == [
        "variant=chain_sum max_terms=2",
        "variant=products max_terms=2",
    ]


def test_a_remote_environment_takes_any_argument() -> None:
    texts = ("dataset_config.max_terms=2..3", "anything=1,2")
    first = buckets_of("http://localhost:8000", *texts)[0]
    assert first.task == {"dataset_config": {"max_terms": 2}, "anything": 1}


@pytest.mark.parametrize(
    ("env", "text", "reason"),
    [
        ("reasoning_gym:chain_sum", "max_term=2..5", "'max_terms'"),
        ("catch", "row=5..10", "'rows'"),
        ("catch", "seeds=5..10", "rows, columns"),
        ("reasoning_gym:chain_sum", "variant=gcd,lcm", "name of an environment"),
        ("catch,wordle", "rows=5..10", "one environment"),
    ],
)
def test_what_the_environment_does_not_have_raises(env: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        buckets_of(env, text)


def test_an_argument_is_set_once() -> None:
    with pytest.raises(ConfigError, match="both set rows"):
        buckets_of("catch", "rows=5,10", rows=5)
    with pytest.raises(ConfigError, match="both set dataset_config"):
        buckets_of("reasoning_gym:chain_sum", "max_terms=2..3", dataset_config={"max_terms": 3})
