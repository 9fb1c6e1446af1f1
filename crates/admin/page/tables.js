// What there is: tiles, nodes with their segments, decisions, tenants, jobs, warnings.

import { cancel, drain, quota } from "./actions.js";
import { byId, element, keep, meter, prose, write } from "./elements.js";
import { byteRate, bytes, count, many, micros, percent, rate, seconds } from "./format.js";

const TILES = [
  { words: "Objects", value: (rates) => [count(rates.total("objects")), null] },
  { words: "Reads", value: (rates) => speed(rates, ["reads.memory_hits", "reads.ssd_hits", "reads.misses"], rate) },
  { words: "Hits", value: hitRatio },
  { words: "Bytes read", value: (rates) => speed(rates, ["reads.memory_bytes", "reads.ssd_bytes"], byteRate) },
  { words: "Puts", value: (rates) => speed(rates, ["puts.stored"], rate) },
  { words: "Bytes put", value: (rates) => speed(rates, ["puts.bytes"], byteRate) },
];

function speed(rates, paths, shown) {
  const all = paths.map((path) => rates.mean(path));
  const total = paths.reduce((sum, path) => sum + rates.total(path), 0);
  const bytes = paths[0].endsWith("bytes");
  return [all.includes(null) ? "–" : shown(all.reduce((a, b) => a + b)), total, bytes ? inAllBytes(total) : `${count(total)} in all`];
}

const inAllBytes = (total) => `${bytes(total)} in all`;

function hitRatio(rates) {
  const now = rates.hits((path) => rates.mean(path) ?? 0);
  const ever = rates.hits((path) => rates.total(path));
  const all = ever === null ? "no reads yet" : `${percent(ever.memory + ever.ssd)} in all`;
  return [now === null ? "–" : percent(now.memory + now.ssd), null, all];
}

export function tiles(rates) {
  keep(byId("tiles"), TILES, (tile) => tile.words, (tile) => {
    const [value, below] = [element("strong"), element("small")];
    const node = element("div", { class: "tile" }, element("span", {}, tile.words), value, below);
    const update = () => {
      const [text, exact, words] = tile.value(rates);
      write(value, text);
      write(below, words ?? " ");
      if (exact !== null) node.title = `${exact.toLocaleString("en-US")} in all`;
    };
    return { node, update };
  });
}

export function warnings(sample) {
  keep(byId("warnings"), sample.warnings, (it) => it.severity + it.what, (it) => ({
    node: element("li", { class: it.severity }, element("strong", {}, ...prose(it.what)), element("span", {}, ...prose(it.action))),
    update: () => {},
  }));
}

/** The nodes, each with its segments; a store that is alone is one node. */
export function nodes(sample) {
  const known = new Map((sample.stats.nodes?.nodes ?? []).map((node) => [node.node, node]));
  const all = new Map();
  for (const segment of sample.segments) {
    const about = known.get(segment.node);
    const node = all.get(segment.node) ?? { node: segment.node, presence: segment.presence, address: about?.data_address ?? segment.endpoint, key: about?.public_key ?? null, fingerprint: about?.fingerprint ?? null, segments: [] };
    node.segments.push(segment);
    all.set(segment.node, node);
  }
  byId("nodes-none").hidden = all.size > 0;
  keep(byId("nodes"), [...all.values()], (node) => node.node, card);
}

const PRESENCE = {
  here: ["good", "has a link"],
  away: ["fair", "lost its link"],
  hidden: ["bad", "has no link"],
};

function card({ node: number }) {
  const [state, address, list] = [element("span", { class: "pill" }), element("span", { class: "quiet" }), element("ul", { class: "bare" })];
  const key = element("span", { class: "quiet" });
  const button = element("button", { type: "button", "aria-label": `Drain node ${number}`, click: () => drain(number) }, "Drain…");
  const name = element("h3", {}, `Node ${number}`);
  const node = element("li", { class: "card" }, element("div", { class: "heading" }, name, button), element("p", { class: "address" }, state, address, key), list);
  const update = (it) => {
    const [tone, words] = PRESENCE[it.presence] ?? ["bad", it.presence];
    state.className = `pill ${tone}`;
    write(state, words);
    write(address, it.address);
    // The fingerprint is what `slackwater keys show` prints; the whole key is there to compare it with a list.
    write(key, it.fingerprint === null ? "" : `key ${it.fingerprint}`);
    key.hidden = it.fingerprint === null;
    key.title = it.key ?? "";
    button.hidden = it.presence !== "here";
    keep(list, it.segments, (segment) => segment.id, segmentRow);
  };
  return { node, update };
}

function segmentRow({ tier }) {
  const [name, full, bar] = [element("span", { class: "name" }), element("span", { class: "figures" }), meter(tier)];
  const node = element("li", { class: "segment" }, name, full, bar.node);
  const update = (it) => {
    const share = it.capacity_bytes > 0 ? it.used_bytes / it.capacity_bytes : 0;
    const drained = it.status === "DRAINING" || it.status === "DRAINED" ? `, ${it.status.toLowerCase()}` : "";
    // The card says which node it is.
    write(name, `${it.name.replace(`-${it.node}`, "")}${drained}`);
    write(full, `${bytes(it.used_bytes)} of ${bytes(it.capacity_bytes)}, ${percent(share)}`);
    full.title = `${it.used_bytes} of ${it.capacity_bytes} bytes`;
    const mark = (at, words) => ({ at, words: `${words} ${percent(at)}` });
    const words = `${it.name} is ${percent(share)} full; eviction begins above ${percent(it.high_watermark)} and ends at ${percent(it.low_watermark)}`;
    bar.update(share, words, [mark(it.low_watermark, "eviction ends at"), mark(it.high_watermark, "eviction begins above")]);
    node.title = words;
  };
  return { node, update };
}

/** Each line is a counter; those of one decision stand together, its reasons below it. */
const DECISIONS = [
  ["Promoted into memory", "promotions.completed"],
  ["not: read too rarely", "promotions.rejected_frequency", "why"],
  ["not: worth less than what memory holds", "promotions.rejected_index", "why"],
  ["not: memory is too full", "promotions.rejected_watermark", "why"],
  ["not: too many under way", "promotions.rejected_cap", "why"],
  ["not: failed, late or cancelled", ["promotions.failed", "promotions.expired", "promotions.cancelled"], "why"],
  ["Another replica of what is read much", "replication.completed"],
  ["would have been made", "replication.observed", "why"],
  ["not: it has enough", "replication.rejected_enough", "why"],
  ["not: no other node has room", "replication.rejected_room", "why"],
  ["not: the quota of the tenant is used up", "replication.rejected_quota", "why"],
  ["not: too many under way, gone or failed", ["replication.rejected_queue", "replication.rejected_unready", "replication.failed"], "why"],
  ["Written to SSD", "offloads.completed"],
  ["not: the SSD would evict it first", "offloads.skipped_not_worth", "why"],
  ["not: too many under way", "offloads.skipped_full", "why"],
  ["not: no SSD takes it", "offloads.skipped_no_disk", "why"],
  ["not: the SSD is failing", "offloads.skipped_failing", "why"],
  ["not: failed, late or cancelled", ["offloads.failed", "offloads.expired", "offloads.cancelled"], "why"],
  ["Evicted from memory", "evictions.count"],
  ["Evicted from SSD", "ssd_evictions.count"],
  ["Puts stored", "puts.stored"],
  ["not: the key was there", "puts.existed", "why"],
  ["not: refused or failed", "puts.refused", "why"],
  ["Puts that waited for space", "puts.waited"],
].map(([words, paths, kind]) => ({ words, paths: [paths].flat(), kind: kind ?? "what" }));

export function decisions(rates, sample) {
  // A store that is alone has no other node for a replica.
  const absent = [
    sample.stats.ssd === null && /^(promotions|offloads|ssd_evictions)/,
    !sample.stats.nodes && /^replication/,
  ].filter(Boolean);
  const shown = DECISIONS.filter(({ paths }) => !absent.some((those) => those.test(paths[0])));
  keep(byId("decisions"), shown, (it) => it.paths.join(), ({ words, paths, kind }) => {
    const [now, all] = [element("td"), element("td")];
    const node = element("tr", { class: kind }, element("th", { scope: "row" }, words), now, all);
    const update = () => {
      const speeds = paths.map((path) => rates.mean(path));
      const total = paths.reduce((sum, path) => sum + rates.total(path), 0);
      write(now, speeds.includes(null) ? "–" : rate(speeds.reduce((a, b) => a + b)));
      write(all, count(total));
      all.title = total.toLocaleString("en-US");
    };
    return { node, update };
  });
  keep(byId("rules"), byTier(sample.stats.eviction_rules), (it) => it.tier, () => {
    const node = element("li");
    const update = ({ tier, followed, rates }) => {
      const rules = [...rates].map(([rule, of]) => `${rule} ${percent(of.reduce((a, b) => a + b) / of.length)}`);
      write(node, `Eviction from ${tier === "ssd" ? "SSD" : tier} follows ${[...followed].join(", ")}; simulated caches hit: ${rules.join(", ")}.`);
    };
    return { node, update };
  });
}

/** The rules of each tier, of all its segments: those that are followed, and the hit rates of each. */
function byTier(all) {
  const tiers = new Map();
  for (const { tier, followed, hit_rates: hits } of all) {
    const of = tiers.get(tier) ?? { tier, followed: new Set(), rates: new Map() };
    tiers.set(tier, of);
    of.followed.add(followed);
    for (const [rule, rate] of hits) of.rates.set(rule, [...(of.rates.get(rule) ?? []), rate]);
  }
  return [...tiers.values()];
}

/** The chains with the most look-ups, and how wrong the counts can be; `explain(key, tenant)` explains the first block. */
export function hottest(sample, explain) {
  const { reads, chains } = sample.hottest;
  byId("hottest-table").hidden = chains.length === 0;
  const worst = Math.max(0, ...chains.map(({ excess }) => excess));
  const exact = worst < 0.5 ? "The counts are exact" : `A count may be ${count(Math.ceil(worst))} too high, and none is too low`;
  const note = `${exact}; a look-up of a minute ago counts half. They are counted while somebody looks.`;
  write(byId("hottest-note"), chains.length === 0 ? "Nothing was looked up since this page looks." : note);
  const shares = chains.map((chain) => ({ ...chain, share: chain.reads / reads }));
  keep(byId("hottest"), shares, (it) => `${it.tenant} ${it.key}`, ({ key, tenant }) => {
    const [number, share] = [element("td"), element("td")];
    const button = element("button", { type: "button", class: "link", title: "Why is it kept?", click: () => explain(key, tenant) }, key);
    const whose = tenant === "default" ? null : element("span", { class: "quiet" }, ` of ${tenant}`);
    const node = element("tr", {}, element("th", { scope: "row" }, button, whose), number, share);
    const update = (it) => {
      write(number, count(it.reads));
      number.title = it.excess > 0 ? `${(it.reads - it.excess).toFixed(1)} to ${it.reads.toFixed(1)}` : it.reads.toFixed(1);
      write(share, percent(it.share));
    };
    return { node, update };
  });
}

export function latency(sample) {
  const calls = { memory: "read from memory", ssd: "read from SSD", put: "put" };
  const parts = { look_up: "look-up of a call", queue: "wait before the SSD", ssd: "SSD", wire: "way to a client, from SSD" };
  const timed = [times(byId("latency"), calls, sample.stats.latency), times(byId("phases"), parts, sample.stats.phases)];
  byId("latency-card").hidden = !timed.includes(true);
}

/** The rows of what was measured at all; whether there are any. */
function times(body, words, measured = {}) {
  const timed = Object.keys(words).filter((name) => measured[name]?.count > 0).map((name) => ({ name, ...measured[name] }));
  keep(body, timed, (it) => it.name, ({ name }) => {
    const cells = ["p50_us", "p95_us", "p99_us", "p999_us"].map((field) => [field, element("td")]);
    const node = element("tr", {}, element("th", { scope: "row" }, words[name]), ...cells.map(([, cell]) => cell));
    return { node, update: (it) => cells.forEach(([field, cell]) => write(cell, micros(it[field]))) };
  });
  return timed.length > 0;
}

export function tenants(sample) {
  byId("tenants-none").hidden = sample.quotas.length > 0;
  keep(byId("tenants"), sample.quotas, (it) => it.tenant_id, (it) => {
    const tiers = [["memory", "memory_bytes", "memory_quota_bytes"], ["ssd", "ssd_bytes", "ssd_quota_bytes"]];
    const rows = tiers.map(([tier, used, limit]) => ({ used, limit, tier, bar: meter(tier), figures: element("span", { class: "figures" }) }));
    const objects = element("span", { class: "quiet" });
    const button = element("button", { type: "button", "aria-label": `Quota of ${it.tenant_id}`, click: () => quota(it.tenant_id) }, "Quota…");
    const parts = rows.map(({ tier, bar, figures }) => element("div", { class: "segment" }, element("span", { class: "name" }, tier === "ssd" ? "SSD" : "memory"), figures, bar.node));
    const node = element("li", {}, element("div", { class: "heading" }, element("h3", {}, it.tenant_id), objects, button), ...parts);
    const update = (now) => {
      write(objects, many(now.objects, "object"));
      for (const { used, limit, bar, figures } of rows) {
        const words = now[limit] === null ? `${bytes(now[used])}, no quota` : `${bytes(now[used])} of ${bytes(now[limit])}`;
        write(figures, words);
        bar.update(now[limit] ? now[used] / now[limit] : 0, words);
        bar.node.hidden = now[limit] === null;
      }
    };
    return { node, update };
  });
  const more = sample.tenants_left;
  write(byId("tenants-title"), more > 0 ? `Tenants (${more} more hold less)` : "Tenants");
}

const STATUS = { RUNNING: "fair", SUCCEEDED: "good", FAILED: "bad", CANCELLED: "plain" };

export function jobs(sample) {
  const latest = [...sample.jobs].reverse();
  byId("jobs-none").hidden = latest.length > 0;
  keep(byId("jobs"), latest, (it) => it.job_id, (job) => {
    const [status, figures, errors, bar] = [element("span"), element("span", { class: "figures" }), element("p", { class: "problem" }), meter("memory")];
    const button = element("button", { type: "button", "aria-label": `Cancel job ${job.job_id}`, click: () => cancel(job.job_id) }, "Cancel…");
    const title = element("h3", {}, `${job.job_id}: ${work(job.work)}`);
    const node = element("li", {}, element("div", { class: "heading" }, title, status, button), element("div", { class: "segment" }, figures, bar.node), errors);
    const update = (it) => {
      const drain = it.work.type === "drain" && it.status === "SUCCEEDED";
      status.className = `pill ${STATUS[it.status] ?? "plain"}`;
      write(status, it.status.toLowerCase());
      const all = it.migrated_bytes + it.left_bytes;
      const failed = it.failed_units > 0 ? `, ${count(it.failed_units)} failed` : "";
      const words = `${bytes(it.migrated_bytes)} in ${many(it.succeeded_units, "value")}${failed}, ${bytes(it.left_bytes)} left, ${seconds(it.age_ms / 1000)}`;
      write(figures, words);
      bar.update(all > 0 ? it.migrated_bytes / all : it.status === "RUNNING" ? 0 : 1, words);
      write(errors, it.errors.map(({ key, error_name }) => `${key}: ${error_name}`).join("; "));
      errors.hidden = it.errors.length === 0;
      button.hidden = it.status !== "RUNNING" && !drain;
    };
    return { node, update };
  });
}

function work(it) {
  if (it.type === "drain") return `drain ${it.segments.join(", ")}`;
  if (it.type === "copy") return `copy ${it.key} to ${it.targets.join(", ")}`;
  return `move ${it.key} to ${it.target}`;
}
