// The picture of bytes between clients, memory, SSD and what leaves: rates on arrows, whose width grows with them.

import { drawn, write } from "./elements.js";
import { byteRate, bytes, count, percent, rate } from "./format.js";

/** Narrower than this the picture stands upright. */
const WIDE = 540;
/** Narrower than this nothing is drawn: a page that is being laid out passes such widths. */
const NARROWEST = 240;

/** The flows, each of one counter of bytes. */
const FLOWS = {
  puts: { words: "puts", counter: "puts.bytes", tone: "clients" },
  memory: { words: "from memory", counter: "reads.memory_bytes", tone: "memory" },
  ssd: { words: "from SSD", counter: "reads.ssd_bytes", tone: "ssd", ssd: true },
  offloads: { words: "offloads", counter: "offloads.completed_bytes", tone: "ssd", ssd: true },
  promotions: { words: "promotions", counter: "promotions.completed_bytes", tone: "memory", ssd: true },
  copies: { words: "between nodes", counter: "copies.bytes", tone: "memory", nodes: true },
  evictions: { words: "evicted", counter: "evictions.bytes", tone: "leaving" },
  ssdEvictions: { words: "evicted", counter: "ssd_evictions.bytes", tone: "leaving", ssd: true },
};

/** A picture that fills `parent` and follows its width. */
export function flow(parent) {
  let told = null;
  let picture = null;
  const draw = () => {
    const width = Math.floor(parent.clientWidth);
    if (width < NARROWEST || picture?.width === width) return;
    picture = { width, ...build(width) };
    parent.replaceChildren(picture.node);
    if (told !== null) picture.update(...told);
  };
  new ResizeObserver(draw).observe(parent);
  return (...now) => {
    told = now;
    draw();
    picture?.update(...now);
  };
}

/** Where boxes and arrows are: `from` and `to` are points, or `path` is the whole line; `label` is the point of the first of two lines of text. */
function layout(width) {
  if (width < WIDE) {
    const third = Math.round(width * 0.37);
    const right = width - 88;
    const column = (x, from, to) => ({ from: [x, from], to: [x, to], label: [x + 10, (from + to) / 2 - 3], anchor: "start" });
    return {
      height: 442,
      clients: [1, 1, width - 2, 62],
      memory: [1, 144, right - 22, 112],
      ssd: [1, 330, width - 2, 111],
      flows: {
        puts: column(20, 68, 138),
        memory: column(third, 138, 68),
        ssd: { ...column(right, 324, 68), label: [right + 10, 192] },
        offloads: column(20, 262, 324),
        promotions: column(third, 324, 262),
      },
    };
  }
  const [clients, leaving] = [Math.round(Math.min(128, width * 0.19)), Math.round(Math.min(120, width * 0.17))];
  const box = Math.round(Math.min(300, (width - clients - leaving) * 0.54));
  const left = width - leaving - box;
  const [over, under] = [clients + 6, left - 6];
  const row = (y, from, to) => ({ from: [from, y], to: [to, y], label: [(from + to) / 2, y - 22], anchor: "middle" });
  const [first, second] = [left + 20, left + Math.round(box * 0.54)];
  const down = (x, from, to) => ({ from: [x, from], to: [x, to], label: [x + 10, (from + to) / 2 - 3], anchor: "start" });
  const right = left + box + 6;
  // From the box and back to it.
  const loop = { path: `M${right - 4} 98C${right + 44} 96 ${right + 44} 130 ${right} 128`, label: [(right + width - 6) / 2, 152], anchor: "middle" };
  return {
    height: 388,
    clients: [1, 1, clients - 2, 386],
    memory: [left, 1, box, 140],
    ssd: [left, 247, box, 140],
    flows: {
      puts: row(48, over, under),
      memory: row(116, under, over),
      ssd: row(322, under, over),
      offloads: down(first, 147, 241),
      promotions: down(second, 241, 147),
      copies: loop,
      evictions: row(76, right, width - 6),
      ssdEvictions: row(322, right, width - 6),
    },
  };
}

function build(width) {
  const places = layout(width);
  const node = drawn("svg", { width, height: places.height, viewBox: `0 0 ${width} ${places.height}`, role: "img" });
  const head = (tone) =>
    drawn("marker", { id: `head-${tone}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 12, markerHeight: 12, orient: "auto", markerUnits: "userSpaceOnUse" },
      drawn("path", { d: "M0 0L8 4L0 8Z", class: `head ${tone}` }));
  node.append(drawn("defs", {}, ...["clients", "memory", "ssd", "leaving"].map(head)));
  const arrows = Object.entries(places.flows).map(([name, place]) => arrow(FLOWS[name], place, node));
  const boxes = {
    clients: box("Clients", "clients", places.clients, node),
    memory: box("Memory", "memory", places.memory, node),
    ssd: box("SSD", "ssd", places.ssd, node),
  };
  const upright = width < WIDE;
  const update = (rates, sample) => {
    const { stats } = sample;
    arrows.forEach((update) => update(rates, stats));
    const clients = stats.nodes?.clients;
    const missed = rates.mean("reads.misses");
    const misses = missed === null ? "" : `${rate(missed)} missed`;
    boxes.clients(upright
      ? [[clients === undefined ? "" : `${count(clients)} with a link`, misses].filter(Boolean).join(", ")]
      : [clients === undefined ? "" : `${count(clients)} with a link`, misses, ...reads(rates)].filter(Boolean), null);
    // What has no arrow here.
    const told = (name, verb) => {
      const now = rates.mean(FLOWS[name].counter);
      return upright && now !== null && exists(FLOWS[name], stats) ? `${verb} ${byteRate(now)}` : "";
    };
    const leaves = [told("evictions", "evicts"), told("copies", "between nodes")].filter(Boolean).join(", ");
    boxes.memory(held(stats.memory, leaves), share(stats.memory));
    if (stats.ssd === null) boxes.ssd(["no SSD: what is evicted is gone"], null);
    else boxes.ssd(held(stats.ssd, told("ssdEvictions", "evicts")), share(stats.ssd));
    node.setAttribute("aria-label", words(rates, stats));
  };
  return { node, update };
}

const share = (tier) => (tier.capacity_bytes > 0 ? tier.used_bytes / tier.capacity_bytes : 0);

const held = (tier, leaves) => [`${bytes(tier.used_bytes)} of ${bytes(tier.capacity_bytes)}`, percent(share(tier)), leaves];

function reads(rates) {
  const [memory, ssd] = [rates.mean("reads.memory_hits"), rates.mean("reads.ssd_hits")];
  return memory === null ? [] : [`${rate(memory + ssd)} served`];
}

/** Whether there is what this flow goes to. */
const exists = (flow, stats) => (!flow.ssd || stats.ssd !== null) && (!flow.nodes || stats.nodes?.nodes.length > 1);

/** What the picture shows, in a sentence for those who hear it. */
function words(rates, stats) {
  const flows = Object.values(FLOWS).filter((flow) => exists(flow, stats));
  const told = flows.map((flow) => `${flow.words} ${byteRate(rates.mean(flow.counter) ?? 0)}`);
  return `Bytes between clients, memory and SSD: ${told.join(", ")}`;
}

/** A box with a title, lines of text and, where there is a share, a bar of it. */
function box(title, tone, [x, y, width, height], parent) {
  const bar = { x: x + 14, y: y + 36, width: width - 28 };
  const frame = drawn("rect", { class: `box ${tone}`, x, y, width, height, rx: 10 });
  const track = drawn("rect", { class: "track", ...bar, height: 8, rx: 4 });
  const fill = drawn("rect", { class: `level ${tone}`, ...bar, width: 0, height: 8, rx: 4 });
  const head = drawn("text", { class: "name", x: x + 14, y: y + 24 });
  head.textContent = title;
  const lines = [0, 1, 2].map(() => drawn("text", { x: x + 14 }));
  parent.append(frame, track, fill, head, ...lines);
  return (texts, full) => {
    for (const part of [track, fill]) part.classList.toggle("gone", full === null);
    if (full !== null) fill.setAttribute("width", Math.max(0, bar.width * Math.min(1, full)));
    const top = full === null ? y + 45 : y + 64;
    lines.forEach((line, index) => {
      const fits = top + index * 18 < y + height - 6;
      write(line, fits ? texts[index] ?? "" : "");
      line.setAttribute("y", top + index * 18);
    });
  };
}

function arrow(flow, { from, to, path, label, anchor }, parent) {
  const line = drawn("path", { class: `arrow ${flow.tone}`, d: path ?? `M${from[0]} ${from[1]}L${to[0]} ${to[1]}`, "marker-end": `url(#head-${flow.tone})` });
  const [name, speed] = [0, 15].map((below) => drawn("text", { x: label[0], y: label[1] + below, "text-anchor": anchor }));
  name.textContent = flow.words;
  speed.classList.add("speed");
  const group = drawn("g", {}, line, name, speed);
  parent.append(group);
  return (rates, stats) => {
    group.classList.toggle("gone", !exists(flow, stats));
    const now = rates.mean(flow.counter);
    write(speed, now === null ? "–" : byteRate(now));
    line.classList.toggle("moving", now > 0);
    // A pixel for each factor of eight above 1 KiB/s.
    const width = now > 0 ? Math.min(9, 2 + Math.max(0, Math.log2(now / 1024) / 3)) : 1.5;
    line.style.setProperty("stroke-width", `${width.toFixed(1)}px`);
  };
}
