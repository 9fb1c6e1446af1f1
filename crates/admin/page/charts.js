// Charts over time, by uPlot. They remember what was told since the page was opened.

import uPlot from "./uplot/uPlot.esm.js";
import { element, write } from "./elements.js";
import { byteRate, percent, seconds } from "./format.js";

/** Samples that a chart keeps. */
const KEPT = 600;
/** The least time that a chart shows, in seconds. */
const SPAN = 60;
const HEIGHT = 132;
/** Distances of lines on a scale of bytes: round in powers of 1024. */
const STEPS = Array.from({ length: 46 }, (_, power) => 2 ** power);

/**
 * A chart of `series`, each `{ words, tone, fill }`, whose values `shown` puts in words; `empty` stands there until one is
 * above zero. Gives `push(time, values)`, where a value that is not known is null.
 */
function chart(parent, legend, { series, shown, range, empty }) {
  const data = [[], ...series.map(() => [])];
  const items = series.map(({ words, tone }) => {
    const value = element("b", {});
    return { value, node: element("span", { class: `key ${tone}` }, `${words} `, value) };
  });
  legend.replaceChildren(...items.map(({ node }) => node));
  const nothing = element("p", { class: "quiet nothing" }, empty);
  parent.append(nothing);
  let plot = null;
  const tell = (at) => items.forEach(({ value }, index) => {
    const known = at === null ? data[index + 1].at(-1) : data[index + 1][at];
    write(value, known === null || known === undefined ? "–" : shown(known));
  });
  const draw = () => {
    const width = Math.floor(parent.clientWidth);
    if (width === 0) return;
    if (plot === null) plot = new uPlot(options(parent, { series, range, shown, width, tell }), data, parent);
    else if (plot.width !== width) plot.setSize({ width, height: HEIGHT });
  };
  new ResizeObserver(draw).observe(parent);
  const themed = () => {
    plot?.destroy();
    plot = null;
    draw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
  document.addEventListener("themed", themed);
  return (time, values) => {
    [time, ...values].forEach((value, index) => {
      data[index].push(value);
      if (data[index].length > KEPT) data[index].shift();
    });
    nothing.hidden ||= values.some((value) => value > 0);
    draw();
    plot?.setData(data);
    if (plot === null || plot.cursor.idx === null || plot.cursor.left < 0) tell(null);
    const last = values.map((value, index) => `${series[index].words} ${value === null ? "not known" : shown(value)}`);
    parent.setAttribute("aria-label", last.join(", "));
  };
}

function options(parent, { series, range, shown, width, tell }) {
  const color = (name) => getComputedStyle(parent).getPropertyValue(name).trim();
  const font = "11px system-ui, sans-serif";
  const grid = { stroke: color("--faint"), width: 1 };
  const axis = { stroke: color("--quiet"), font, grid, ticks: { show: false } };
  const ago = (u, ticks) => {
    const now = latest(u);
    return ticks.map((tick) => (now - tick < 1 ? "now" : `−${seconds(now - tick)}`));
  };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    hooks: { setCursor: [(u) => tell(u.cursor.left < 0 ? null : u.cursor.idx)] },
    scales: {
      // What uPlot hands over is padded while there is one sample: the axis ends with the last one.
      x: { time: false, range: (u) => [Math.min(u.data[0][0] ?? 0, latest(u) - SPAN), latest(u)] },
      y: { range: range ?? ((u, min, max) => [0, Math.max(1024, (max ?? 0) * 1.1)]) },
    },
    axes: [
      { ...axis, size: 26, space: 70, values: ago, splits: (u, at, min, max) => ticks(min, max, u.width) },
      { ...axis, size: 70, space: 20, ...(range ? {} : { incrs: STEPS }), values: (u, ticks) => ticks.map(shown) },
    ],
    series: [
      {},
      ...series.map(({ tone, fill }) => ({
        stroke: color(`--${tone}`),
        fill: fill ? `color-mix(in srgb, ${color(`--${tone}`)} 28%, transparent)` : undefined,
        width: 1.6,
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}

/** When the last sample was told. */
const latest = (u) => u.data[0].at(-1) ?? 0;

/** Some moments up to now, a round time apart. */
function ticks(min, max, width) {
  const most = Math.max(2, Math.floor(width / 110));
  const step = [15, 30, 60, 120, 300].find((step) => (max - min) / step <= most) ?? 600;
  const found = [];
  for (let at = max; at >= min + step / 4; at -= step) found.unshift(at);
  return found;
}

/** The hits: memory below, SSD on top of it. */
export function hitChart(parent, legend) {
  const push = chart(parent, legend, {
    series: [{ words: "memory and SSD", tone: "ssd", fill: true }, { words: "memory", tone: "memory", fill: true }],
    shown: percent,
    range: () => [0, 1],
    empty: "No hits yet",
  });
  return (time, rates) => {
    const hits = rates.hits((path) => rates.last(path) ?? 0);
    push(time, hits === null ? [null, null] : [hits.memory + hits.ssd, hits.memory]);
  };
}

/** The bytes that go to and from clients. */
export function throughputChart(parent, legend) {
  const push = chart(parent, legend, {
    series: [
      { words: "from memory", tone: "memory", fill: true },
      { words: "from SSD", tone: "ssd", fill: true },
      { words: "puts", tone: "clients", fill: false },
    ],
    shown: byteRate,
    empty: "No bytes yet",
  });
  return (time, rates) => push(time, ["reads.memory_bytes", "reads.ssd_bytes", "puts.bytes"].map((path) => rates.last(path)));
}
