import { extent, niceTicks, padded, useWidth } from "./charts";
import { formatDifference, formatNumber, formatShare } from "./format";
import type { Estimate } from "./types";

const ROW_HEIGHT = 26;
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
