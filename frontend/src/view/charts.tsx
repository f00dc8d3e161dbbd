import { useEffect, useRef, useState } from "preact/hooks";
import type { Bin, Curve } from "./types";
import { formatCount, formatNumber } from "./format";
import "./charts.css";

const HEIGHT = 150;
const MARGIN = { top: 8, right: 10, bottom: 20, left: 46 };
const SMOOTHING = 1 / 40;
const MAX_DOTS = 12;
const MAX_BAR_WIDTH = 90;

type Points = [number, number][];

export interface Series {
  name: string;
  points: Points;
  color: number;
}

/** Measure the width of an element, also when it changes. */
export function useWidth() {
  const element = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(320);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => entry && setWidth(Math.max(160, entry.contentRect.width)));
    observer.observe(element.current!);
    return () => observer.disconnect();
  }, []);
  return { element, width };
}

/** Round numbers that divide a range into about `count` parts. */
export function niceTicks(low: number, high: number, count: number): number[] {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) ticks.push(tick);
  return ticks;
}

/**
 * Means over all points up to `reach` before and after each, and over fewer at the ends: as many on either side, so
 * that a line neither lags nor starts elsewhere.
 */
export function smooth(points: Points, reach: number): Points {
  let [first, end, sum] = [0, 0, 0];
  const [left, right] = [points[0]?.[0] ?? 0, points.at(-1)?.[0] ?? 0];
  return points.map(([x]) => {
    const near = Math.min(reach, x - left, right - x);
    while (end < points.length && points[end]![0] <= x + near) sum += points[end++]![1];
    while (points[first]![0] < x - near) sum -= points[first++]![1];
    return [x, sum / (end - first)];
  });
}

/** Lines over one x axis. `reach`: over how many steps before and after all of them are smoothed alike. */
export function LineChart(props: { title: string; series: Series[]; x: string; reach: number }) {
  const { element, width } = useWidth();
  const [hovered, setHovered] = useState<number | null>(null);
  const all = props.series.flatMap(({ points }) => points);
  const [left, right] = extent(all.map(([x]) => x));
  const [low, high] = padded(extent(all.map(([, y]) => y)));
  const toX = (x: number) => MARGIN.left + ((x - left) / (right - left || 1)) * (width - MARGIN.left - MARGIN.right);
  const toY = (y: number) => HEIGHT - MARGIN.bottom - ((y - low) / (high - low || 1)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const path = (points: [number, number][]) =>
    points.map(([x, y], at) => `${at ? "L" : "M"}${toX(x).toFixed(1)} ${toY(y).toFixed(1)}`).join("");
  const nearest = hovered === null ? [] : props.series.map(({ points }) => findNearest(points, hovered));
  return (
    <figure class="chart card" ref={element}>
      <figcaption>
        <strong>{props.title}</strong>
        <span class="chart-values">
          {props.series.map(({ name, points }, at) => {
            const point = nearest[at] ?? points.at(-1);
            return (
              <span key={name} class={`series-${props.series[at]!.color}`}>
                {props.series.length > 1 && `${name} `}
                {point && formatNumber(point[1])}
              </span>
            );
          })}
          {nearest[0] && (
            <span class="muted">
              {props.x} {formatCount(nearest[0][0])}
            </span>
          )}
        </span>
      </figcaption>
      <svg
        width={width}
        height={HEIGHT}
        role="img"
        aria-label={`${props.title} by ${props.x}`}
        onPointerMove={(event) => {
          const at = event.clientX - event.currentTarget.getBoundingClientRect().left;
          setHovered(left + ((at - MARGIN.left) / (width - MARGIN.left - MARGIN.right)) * (right - left));
        }}
        onPointerLeave={() => setHovered(null)}
      >
        {niceTicks(low, high, 4).map((tick) => (
          <g key={tick} class="tick">
            <line x1={MARGIN.left} x2={width - MARGIN.right} y1={toY(tick)} y2={toY(tick)} />
            <text x={MARGIN.left - 6} y={toY(tick) + 4} text-anchor="end">
              {formatNumber(Number(tick.toPrecision(6)))}
            </text>
          </g>
        ))}
        {niceTicks(left, right, Math.max(2, width / 110)).map((tick) => (
          <text key={tick} class="tick-x" x={toX(tick)} y={HEIGHT - 4} text-anchor="middle">
            {formatCount(tick)}
          </text>
        ))}
        {props.series.map(({ name, points, color }, at) => (
          <g key={name} class={`series-${color}`}>
            {props.reach >= 1 && <path class="raw" d={path(points)} />}
            <path class="line" d={path(smooth(points, props.reach))} />
            {points.length <= MAX_DOTS && points.map(([x, y]) => <circle key={x} r={2.5} cx={toX(x)} cy={toY(y)} />)}
            {nearest[at] && <circle r={3.5} cx={toX(nearest[at]![0])} cy={toY(nearest[at]![1])} />}
          </g>
        ))}
      </svg>
    </figure>
  );
}

/** The metrics of one or two runs, the same ones of both in one chart. */
export function Curves({ runs }: { runs: { name: string; curves: Curve[] }[] }) {
  const all = runs.flatMap(({ name, curves }, run) => curves.map((curve) => ({ ...curve, name, run })));
  return (
    <div class="chart-grid">
      {[...new Set(all.map(({ chart }) => chart))].map((chart) => {
        const curves = all.filter((curve) => curve.chart === chart);
        const lines = [...new Set(curves.map(({ line }) => line))];
        const series = curves.map(({ name, run, line, points }) => ({
          name: [runs.length > 1 && name, lines.length > 1 && line].filter(Boolean).join(" "),
          points,
          color: run + runs.length * lines.indexOf(line),
        }));
        const { title, x, is_schedule } = curves[0]!;
        return <LineChart key={chart} title={title} x={x} series={series} reach={is_schedule ? 0 : smoothingReach(curves)} />;
      })}
    </div>
  );
}

/** A part of the shorter run: its line and that of a longer one are comparable only if smoothed alike. */
function smoothingReach(curves: { run: number; points: Points }[]): number {
  const lengths = [...new Set(curves.map(({ run }) => run))].map((run) => {
    const [first, last] = extent(curves.filter((curve) => curve.run === run).flatMap(({ points }) => points.map(([x]) => x)));
    return last - first;
  });
  return SMOOTHING * Math.min(...lengths);
}

/** Bars by reward. */
export function Histogram(props: { bins: Bin[]; title: string; onPick?: (bin: Bin) => void }) {
  const { element, width } = useWidth();
  const highest = Math.max(1, ...props.bins.map(({ count }) => count));
  const slot = Math.min(MAX_BAR_WIDTH, (width - 20) / props.bins.length);
  const label = ({ low, high }: Bin) =>
    low === high ? formatNumber(low) : `${formatNumber(low)} to ${formatNumber(high)}`;
  return (
    <figure class="chart card" ref={element}>
      <figcaption>
        <strong>{props.title}</strong>
      </figcaption>
      <svg width={width} height={HEIGHT} role="img" aria-label={props.title}>
        {props.bins.map((bin, at) => {
          const size = bin.count ? Math.max(2, (bin.count / highest) * (HEIGHT - 44)) : 0;
          return (
            <g key={at} class={props.onPick ? "bar pickable" : "bar"} onClick={() => props.onPick?.(bin)}>
              <title>{`Reward ${label(bin)}: ${formatCount(bin.count)}`}</title>
              <rect class="bar-area" x={10 + at * slot} y={0} width={slot} height={HEIGHT - 20} />
              <rect
                x={10 + at * slot + Math.min(2, slot * 0.1)}
                y={HEIGHT - 20 - size}
                width={Math.max(1, slot - Math.min(4, slot * 0.2))}
                height={size}
                rx={2}
              />
              {slot > 34 && bin.count > 0 && (
                <text x={10 + (at + 0.5) * slot} y={HEIGHT - 25 - size} text-anchor="middle">
                  {formatCount(bin.count)}
                </text>
              )}
            </g>
          );
        })}
        {props.bins.map((bin, at) =>
          at % Math.ceil(60 / slot) === 0 ? (
            <text key={at} class="tick-x" x={10 + (at + (bin.low === bin.high ? 0.5 : 0)) * slot} y={HEIGHT - 4} text-anchor={bin.low === bin.high ? "middle" : "start"}>
              {formatNumber(Number(bin.low.toPrecision(2)))}
            </text>
          ) : null,
        )}
      </svg>
    </figure>
  );
}

export function extent(values: number[]): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return low <= high ? [low, high] : [0, 1];
}

export function padded([low, high]: [number, number]): [number, number] {
  const margin = high > low ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 0.5;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

function findNearest(points: [number, number][], x: number): [number, number] | undefined {
  let best = points[0];
  for (const point of points) if (Math.abs(point[0] - x) < Math.abs(best![0] - x)) best = point;
  return best;
}
