// Single decisions as they happen, each with its reason.

import { byId, element, keep, write } from "./elements.js";
import { bytes, count, percent, seconds } from "./format.js";

/** Decisions in the list: what a person can look over, and a browser draws in no time. */
const SHOWN = 24;
/** The first time of a return curve that is at least this long is told. */
const HORIZON_S = 600;

const NAMES = {
  evicted: ["leaving", (tier) => `Evicted from ${tier}`],
  offloaded: ["ssd", () => "Written to SSD"],
  not_offloaded: ["refused", () => "Not written to SSD"],
  promoted: ["memory", () => "Promoted into memory"],
  not_promoted: ["refused", () => "Not promoted"],
};

/** The list of decisions; `explain(key, tenant)` shows why an object is kept. `push(sample)` adds what is new. */
export function decisionList(explain) {
  let [known, epoch, paused] = [[], null, false];
  const button = byId("pause");
  let latest = null;
  const show = () => {
    const made = latest.decisions.made;
    byId("latest-none").hidden = known.length > 0;
    write(byId("latest-note"), known.length === 0 ? "" : `${count(known.length)} of ${count(made)} that were made; of many in a second the first of each kind are shown.`);
    keep(byId("latest"), known, (it) => it.number, (it) => row(it, explain));
  };
  button.addEventListener("click", () => {
    paused = !paused;
    write(button, paused ? "Go on" : "Pause");
    button.setAttribute("aria-pressed", paused);
    if (!paused && latest !== null) show();
  });
  return (sample) => {
    // Numbers of another life of the server began anew.
    if (epoch !== sample.epoch) [known, epoch] = [[], sample.epoch];
    const last = known[0]?.number ?? 0;
    const fresh = sample.decisions.latest.filter(({ number }) => number > last).map((it) => ({ ...it, at: sample.time_s - it.age_s }));
    // The server's own clock goes before ours: that of a replay is the trace's.
    const ages = new Map(sample.decisions.latest.map((it) => [it.number, it.age_s]));
    known = [...fresh.reverse(), ...known].slice(0, SHOWN);
    known.forEach((it) => (it.age_s = ages.get(it.number) ?? Math.max(0, sample.time_s - it.at)));
    latest = sample;
    if (!paused) show();
  };
}

function row(it, explain) {
  const [tone, words] = NAMES[it.decision] ?? ["refused", () => it.decision];
  const tier = it.tier === "ssd" ? "SSD" : it.tier;
  const ago = element("span", { class: "figures" });
  const key = element("button", { type: "button", class: "link", title: "Why is it kept?", click: () => explain(it.key, it.tenant) }, it.key);
  const whose = it.tenant === "default" ? null : element("span", { class: "quiet" }, `of ${it.tenant}`);
  const about = element("p", { class: "quiet" }, reason(it));
  const node = element("li", { class: `decision ${tone}` },
    element("div", { class: "segment" }, element("strong", {}, words(tier)), ago),
    element("p", { class: "subject" }, key, whose, element("span", { class: "quiet" }, `${bytes(it.bytes)}, segment ${it.segment}`)), about);
  return { node, update: (now) => write(ago, `${seconds(now.age_s)} ago`) };
}

/** The cause, and what was known of the object: class, age, expected return, worth. */
function reason({ why, learned }) {
  if (learned === null) return `${why}.`;
  const hour = (index) => (index * 3600 < 99.5 ? (index * 3600).toPrecision(2) : count(index * 3600));
  const parts = [learned.class, `last read ${seconds(learned.age_s)} ago`];
  const point = learned.returns.find(({ within_s: within }) => within >= HORIZON_S) ?? learned.returns.at(-1);
  if (point) parts.push(`returns with ${percent(point.chance)} within ${seconds(point.within_s)}`);
  parts.push(`worth ${hour(learned.index)} hits an hour, what goes next ${hour(learned.lowest_index)}`);
  if (learned.rule) parts.push(`rule ${learned.rule}`);
  return `${why}: ${parts.join("; ")}.`;
}
