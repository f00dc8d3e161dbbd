import { useState } from "preact/hooks";
import { MARGIN, extent, niceTicks, padded, useWidth } from "./charts";
import { formatDifference, formatNumber, formatShare } from "./format";
import type { Estimate } from "./types";

const ROW_HEIGHT = 26;
const CURVE_HEIGHT = 190;
const AXIS_HEIGHT = 36;
const WHISKER_DISTANCE = 8;
const CHARACTER_WIDTH = 6.5;
const MAX_LABEL_LENGTH = 18;
const COLORS = 6;

/** The colour of a candidate, the same in all charts. */
export function seriesClass(candidate: number): string {
  return `series-${candidate % COLORS}`;
}

/** Estimates of the candidates with their intervals, one below the other on one scale. */
export function IntervalChart(props: {
  title: string;
  labels: string[];
  estimates: (Estimate | null)[];
  isShare: boolean;
  /** Whether these are differences: the scale has a zero, and no fixed end. */
  isDifference?: boolean;
}) {
  const { element, width } = useWidth();
  const rows = props.estimates.flatMap((estimate, candidate) => (estimate ? [{ estimate, candidate }] : []));
  const [left, right] = props.isShare && !props.isDifference
    ? [0, 1]
    : padded(extent([0, ...rows.flatMap(({ estimate }) => ends(estimate))]));
  const format = (value: number) => formatEstimate(value, props.isShare, props.isDifference);
  const labelWidth = Math.min(140, width / 3);
  const toX = (x: number) => labelWidth + ((x - left) / (right - left || 1)) * (width - labelWidth - 74);
  const height = rows.length * ROW_HEIGHT + 24;
  return (
    <figure class="chart card" ref={element}>
      <figcaption>
        <strong>{props.title}</strong>
      </figcaption>
      <svg width={width} height={height} role="img" aria-label={props.title}>
        {niceTicks(left, right, 4).map((tick) => (
          <g key={tick} class={tick === 0 && props.isDifference ? "tick zero" : "tick"}>
            <line x1={toX(tick)} x2={toX(tick)} y1={0} y2={height - 20} />
            <text x={toX(tick)} y={height - 4} text-anchor="middle">
              {formatTick(tick, props.isShare, props.isDifference)}
            </text>
          </g>
        ))}
        {rows.map(({ estimate: { value, low, high }, candidate }, at) => (
          <g key={candidate} class={`interval ${seriesClass(candidate)}`}>
            <text x={0} y={at * ROW_HEIGHT + 17}>
              {shorten(props.labels[candidate] ?? "")}
              <title>{props.labels[candidate]}</title>
            </text>
            {low !== null && high !== null && (
              <line class="whisker" x1={toX(low)} x2={toX(high)} y1={at * ROW_HEIGHT + 13} y2={at * ROW_HEIGHT + 13} />
            )}
            <circle cx={toX(value)} cy={at * ROW_HEIGHT + 13} r={4} />
            <text x={width} y={at * ROW_HEIGHT + 17} text-anchor="end">
              {format(value)}
            </text>
          </g>
        ))}
      </svg>
    </figure>
  );
}

/** A line per candidate over levels, with whiskers; the candidates stand beside each other. */
export function CurveChart(props: {
  title: string;
  xTitle: string;
  labels: string[];
  names: string[];
  candidates: (Estimate | null)[][];
  isShare: boolean;
}) {
  const { element, width } = useWidth();
  const [hovered, setHovered] = useState<number | null>(null);
  const { labels, candidates, isShare } = props;
  const estimates = candidates.flat().filter((each) => each !== null);
  const [low, high] = isShare ? [0, 1] : padded(extent([0, ...estimates.flatMap(ends)]));
  const bottom = CURVE_HEIGHT - AXIS_HEIGHT;
  const slot = (width - MARGIN.left - MARGIN.right) / labels.length;
  const distance = Math.min(WHISKER_DISTANCE, slot / (candidates.length + 1));
  const toX = (level: number, candidate: number) =>
    MARGIN.left + (level + 0.5) * slot + distance * (candidate - (candidates.length - 1) / 2);
  const toY = (y: number) => bottom - ((y - low) / (high - low || 1)) * (bottom - MARGIN.top);
  const longest = Math.max(...labels.map((label) => shorten(label).length)) + 1;
  const every = Math.max(1, Math.ceil((longest * CHARACTER_WIDTH) / slot));
  return (
    <figure class="chart card" ref={element}>
      <figcaption>
        <strong>{props.title}</strong>
        <span class="chart-values">
          {hovered !== null && <span class="muted">{[props.xTitle, labels[hovered]].filter(Boolean).join(" = ")}</span>}
          {props.names.map((name, candidate) => {
            const estimate = hovered === null ? null : candidates[candidate]?.[hovered];
            return (
              <span key={name} class={seriesClass(candidate)}>
                {name} {estimate && formatEstimate(estimate.value, isShare)}
              </span>
            );
          })}
        </span>
      </figcaption>
      <svg
        width={width}
        height={CURVE_HEIGHT}
        role="img"
        aria-label={props.title}
        onPointerMove={(event) => {
          const at = event.clientX - event.currentTarget.getBoundingClientRect().left;
          setHovered(Math.max(0, Math.min(labels.length - 1, Math.floor((at - MARGIN.left) / slot))));
        }}
        onPointerLeave={() => setHovered(null)}
      >
        {niceTicks(low, high, isShare ? 5 : 4).map((tick) => (
          <g key={tick} class="tick">
            <line x1={MARGIN.left} x2={width - MARGIN.right} y1={toY(tick)} y2={toY(tick)} />
            <text x={MARGIN.left - 6} y={toY(tick) + 4} text-anchor="end">
              {formatTick(tick, isShare)}
            </text>
          </g>
        ))}
        {labels.map((label, level) =>
          level % every === 0 ? (
            <text key={label} x={MARGIN.left + (level + 0.5) * slot} y={bottom + 16} text-anchor="middle">
              {shorten(label)}
              <title>{label}</title>
            </text>
          ) : null,
        )}
        <text x={(MARGIN.left + width - MARGIN.right) / 2} y={CURVE_HEIGHT - 4} text-anchor="middle">
          {props.xTitle}
        </text>
        {candidates.map((levels, candidate) => {
          const points = levels.flatMap((each, level) => (each ? [{ ...each, x: toX(level, candidate) }] : []));
          return (
            <g key={candidate} class={seriesClass(candidate)}>
              <path class="line" d={points.map(({ x, value }, at) => `${at ? "L" : "M"}${x.toFixed(1)} ${toY(value).toFixed(1)}`).join("")} />
              {points.map(({ x, value, low, high }) => (
                <g key={x}>
                  {low !== null && high !== null && <line class="whisker" x1={x} x2={x} y1={toY(low)} y2={toY(high)} />}
                  <circle cx={x} cy={toY(value)} r={3.5} />
                </g>
              ))}
            </g>
          );
        })}
      </svg>
    </figure>
  );
}

function ends({ value, low, high }: Estimate): number[] {
  return [value, low ?? value, high ?? value];
}

/** Cut out the middle: long labels often differ in their ends. */
function shorten(label: string): string {
  if (label.length <= MAX_LABEL_LENGTH) return label;
  const kept = MAX_LABEL_LENGTH / 2;
  return `${label.slice(0, kept)}…${label.slice(1 - kept)}`;
}

function formatEstimate(value: number, isShare: boolean, isDifference = false): string {
  if (isDifference) return formatDifference(value, isShare);
  return isShare ? formatShare(value) : formatNumber(Number(value.toPrecision(3)));
}

function formatTick(tick: number, isShare: boolean, isDifference = false): string {
  if (!isShare) return formatNumber(Number(tick.toPrecision(6)));
  return `${Number((100 * tick).toPrecision(4))} ${isDifference ? "pp" : "%"}`;
}
