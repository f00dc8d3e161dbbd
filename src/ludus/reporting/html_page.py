"""A report as one HTML page: no script, no other file, and no request.

The content security policy in its head forbids scripts and requests, so that no text of a
transcript can cause any.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from ludus.reporting.charts import render_chart
from ludus.reporting.document import REPORT_MARK, Section, Table, Transcript, Turn

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'"
_WIDE_COLUMNS = 60
"""Cells with more characters may be wrapped."""


class Html(str):
    """Markup that needs no escaping."""

    __slots__ = ()


def element(tag: str, *children: str | None, **attributes: str | int | None) -> Html:
    """Render an HTML element. Plain strings among the children are escaped; None is left out.

    A trailing underscore of an attribute's name is removed (`class_`), others become dashes.
    """
    attribute_text = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in ("img", "meta"):
        return Html(f"<{tag}{attribute_text}/>")
    parts = (
        child if isinstance(child, Html) else escape(child)
        for child in children
        if child is not None
    )
    return Html(f"<{tag}{attribute_text}>{''.join(parts)}</{tag}>")


def render_html(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Render the report as HTML."""
    style = files("ludus.reporting").joinpath("style.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=REPORT_MARK),
        element("title", f"{title} · {REPORT_MARK}"),
        Html(f"<style>{style}</style>"),
    )
    numbered = list(enumerate(sections, 1))
    overview = [
        element(
            "li",
            element(
                "a",
                element("span", str(number), class_="step"),
                element(
                    "span",
                    element("b", f"{section.kind}: {section.title}"),
                    element("span", section.headline, class_="headline"),
                    class_="what",
                ),
                href=f"#section-{number}",
            ),
        )
        for number, section in numbered
    ]
    header = element(
        "header",
        element("p", REPORT_MARK, class_="kicker"),
        element("h1", title),
        element("p", subtitle, class_="muted"),
        element("nav", element("ol", *overview), class_="overview", aria_label="Sections"),
    )
    content = [_section(number, each) for number, each in numbered]
    body = element("body", element("main", header, *content))
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _section(number: int, section: Section) -> Html:
    facts = [
        element("div", element("dt", name), element("dd", value))
        for name, value in section.facts.items()
        if value
    ]
    charts = [
        element("figure", element("figcaption", chart.title), Html(render_chart(chart)))
        for chart in section.charts
    ]
    findings = [
        element(
            "li",
            element("span", each.kind, class_="badge"),
            element("span", *_with_code(each.text)),
            class_=f"finding {each.kind}",
        )
        for each in section.findings
    ]
    how = [element("h3", "How it was run")]
    if section.command:
        how.append(element("pre", section.command))
    if section.settings:
        settings = json.dumps(section.settings, indent=2, ensure_ascii=False, default=str)
        how.append(element("details", element("summary", "Settings"), element("pre", settings)))
    return element(
        "section",
        element(
            "div",
            element("p", f"{number} · {section.kind}", class_="kicker"),
            element("h2", section.title),
            element("p", section.path, class_="muted path"),
            class_="section-head",
        ),
        element("dl", *facts, class_="facts") if facts else None,
        element("ul", *findings, class_="findings") if findings else None,
        element("div", *charts, class_="charts") if charts else None,
        *map(_table, section.tables),
        *(element("p", *_with_code(note), class_="muted note-text") for note in section.notes),
        element(
            "div",
            element("h3", "Transcripts"),
            element("div", *map(_transcript, section.transcripts), class_="transcripts"),
        )
        if section.transcripts
        else None,
        element("div", *how, class_="how") if len(how) > 1 else None,
        id=f"section-{number}",
    )


def _with_code(text: str) -> list[str]:
    """The text, with what stands in backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return [text]
    return [element("code", part) if number % 2 else part for number, part in enumerate(parts)]


def _table(table: Table) -> Html:
    head = element("tr", *(element("th", cell, scope="col") for cell in table.header))
    rows = []
    for first, *cells in table.rows:
        row = [element("th", first, scope="row")]
        for text in cells:
            value, bracket, interval = text.partition(" (")
            # The interval behind a value is small.
            small = element("small", f" ({interval}") if bracket else None
            is_wide = not bracket and len(text) > _WIDE_COLUMNS
            row.append(element("td", value, small, class_="wide" if is_wide else None))
        rows.append(element("tr", *row))
    content = element("table", element("thead", head), element("tbody", *rows))
    return element(
        "div", element("h3", table.title), element("div", content, class_="scroll"), class_="table"
    )


def _transcript(transcript: Transcript) -> Html:
    return element(
        "article",
        element(
            "div",
            element("h4", transcript.title),
            element("p", transcript.detail, class_="muted") if transcript.detail else None,
            class_="transcript-head",
        ),
        element(
            "div",
            *map(_turn, transcript.turns),
            class_="turns",
            tabindex=0,
            role="region",
            aria_label=transcript.title,
        ),
        class_=f"transcript {transcript.kind}",
    )


def _turn(turn: Turn) -> Html:
    reward = None
    if turn.reward:
        reward = element("span", f"reward {turn.reward:g}", class_="reward")
    role = element("p", turn.role, reward, class_="role")
    reasoning = None
    if turn.reasoning:
        reasoning = element(
            "details", element("summary", "reasoning"), element("pre", turn.reasoning)
        )
    body = [
        reasoning,
        element("pre", turn.text) if turn.text else None,
        *(element("pre", call, class_="call") for call in turn.calls),
        *(element("img", src=url, alt="image of the observation") for url in turn.images),
    ]
    if turn.role == "system":
        return element("details", element("summary", "system prompt"), *body, class_="turn system")
    name = turn.role if turn.role in ("user", "assistant", "tool") else "other"
    return element("div", role, *body, class_=f"turn {name}")
