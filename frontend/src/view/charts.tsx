import { useEffect, useRef, useState } from "preact/hooks";
import type { Bin, Curve } from "./types";
import { formatCount, formatNumber } from "./format";
import "./charts.css";

const HEIGHT = 150;
export const MARGIN = { top: 8, right: 10, bottom: 20, left: 46 };
const SMOOTH_ABOVE = 40;
const MAX_BAR_WIDTH = 90;

export interface Series {
  name: string;
  points: [number, number][];
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

/** An exponential moving average, so that the trend of noisy steps can be seen. */
export function smooth(points: [number, number][]): [number, number][] {
  const weight = Math.min(0.97, 1 - 12 / points.length);
  let mean = points[0]?.[1] ?? 0;
  return points.map(([x, y]) => [x, (mean = weight * mean + (1 - weight) * y)]);
}

export function LineChart(props: { title: string; series: Series[]; x: string }) {
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
              <span key={name} class={`series-${at}`}>
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
        {props.series.map(({ name, points }, at) => (
          <g key={name} class={`series-${at}`}>
            <path class={points.length > SMOOTH_ABOVE ? "raw" : "line"} d={path(points)} />
            {points.length > SMOOTH_ABOVE && <path class="line" d={path(smooth(points))} />}
            {nearest[at] && <circle r={3.5} cx={toX(nearest[at]![0])} cy={toY(nearest[at]![1])} />}
          </g>
        ))}
      </svg>
    </figure>
  );
}

/** The same metrics of one or two runs, each in a chart of its own. */
export function Curves({ runs }: { runs: { name: string; curves: Curve[] }[] }) {
  const keys = [...new Set(runs.flatMap(({ curves }) => curves.map(({ key }) => key)))];
  return (
    <div class="chart-grid">
      {keys.map((key) => {
        const series = runs.flatMap(({ name, curves }) =>
          curves.filter((curve) => curve.key === key).map(({ points }) => ({ name, points })),
        );
        const curve = runs.flatMap(({ curves }) => curves).find((each) => each.key === key)!;
        return <LineChart key={key} title={curve.title} x={curve.x} series={series} />;
      })}
    </div>
  );
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
