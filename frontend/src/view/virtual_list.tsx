import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import "./virtual_list.css";

/** Browsers limit the height of an element; longer lists scroll faster than one row per row. */
const MAX_HEIGHT = 8_000_000;
const OVERSCAN = 6;

/** A list of any length of which only the visible rows exist. All rows have the same height. */
export function VirtualList(props: {
  total: number;
  rowHeight: number;
  selected: number;
  label: string;
  render: (index: number) => ComponentChildren;
  /** Called with the visible range, so that its rows can be loaded. */
  onRange?: (first: number, end: number) => void;
}) {
  const { total, rowHeight } = props;
  const element = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const fullHeight = total * rowHeight;
  const height = Math.min(fullHeight, MAX_HEIGHT);
  const scrollable = Math.max(1, height - view.height);
  const scale = Math.max(1, (fullHeight - view.height) / scrollable);
  const offset = view.top * scale;
  const first = Math.max(0, Math.floor(offset / rowHeight) - OVERSCAN);
  const end = Math.min(total, Math.ceil((offset + view.height) / rowHeight) + OVERSCAN);

  const measure = () => {
    const { scrollTop, clientHeight } = element.current!;
    setView((before) =>
      before.top === scrollTop && before.height === clientHeight ? before : { top: scrollTop, height: clientHeight },
    );
  };
  useLayoutEffect(() => {
    const observer = new ResizeObserver(measure);
    observer.observe(element.current!);
    return () => observer.disconnect();
  }, []);
  useEffect(() => props.onRange?.(first, end), [first, end, total]);
  useLayoutEffect(() => {
    const top = props.selected * rowHeight;
    const shown = element.current!.scrollTop * scale;
    if (top < shown) element.current!.scrollTop = top / scale;
    else if (top + rowHeight > shown + view.height)
      element.current!.scrollTop = (top + rowHeight - view.height) / scale;
  }, [props.selected]);

  const rows = [];
  for (let index = first; index < end; index++) {
    rows.push(
      <div key={index} class="virtual-row" style={{ top: `${view.top + index * rowHeight - offset}px`, height: `${rowHeight}px` }}>
        {props.render(index)}
      </div>,
    );
  }
  return (
    <div class="virtual-list" ref={element} role="rowgroup" aria-label={props.label} onScroll={measure}>
      <div class="virtual-space" style={{ height: `${height}px` }}>
        {rows}
      </div>
    </div>
  );
}
