// One object: where its bytes are, and why each tier keeps it.

import { removeOne } from "./actions.js";
import { byId, drawn, element } from "./elements.js";
import { bytes, percent, seconds } from "./format.js";
import { ask } from "./stream.js";

/** Shows why an object is kept, as if somebody had typed its key. */
export function explain(key, tenant) {
  byId("search-key").value = key;
  byId("search-tenant").value = tenant === "default" ? "" : tenant;
  byId("search").requestSubmit();
  byId("search-title").scrollIntoView({ block: "start" });
}

export function search() {
  let latest = 0;
  byId("search").addEventListener("submit", async (event) => {
    event.preventDefault();
    const query = { key: byId("search-key").value, tenant: byId("search-tenant").value };
    const found = byId("found");
    latest += 1;
    const number = latest;
    try {
      const [object, reasons] = await Promise.all([ask("GET", "api/v1/object", query), ask("GET", "api/v1/explain", query)]);
      // Another key was asked for meanwhile.
      if (number !== latest) return;
      const remove = element("button", { type: "button", class: "danger", click: () => removeOne(query) }, "Remove this object…");
      found.replaceChildren(facts(query, object), ...reasons.map(reason), remove);
    } catch (error) {
      if (number === latest) found.replaceChildren(element("p", { class: "problem" }, `${query.key}: ${error.message}`));
    }
  });
}

function facts({ key, tenant }, object) {
  const replicas = object.replicas.map(({ tier, state, readers }) => `${tier === "ssd" ? "SSD" : tier}, ${state}${readers > 0 ? `, ${readers} readers` : ""}`);
  const all = [
    ["Key", tenant === "" ? key : `${key} of tenant ${tenant}`],
    ["Size", `${bytes(object.bytes)} (${object.bytes} bytes)`],
    ["Replicas", replicas.join("; ") || "none"],
    ["Pin", object.pin],
    ["Lease", object.lease_ms > 0 ? `${seconds(object.lease_ms / 1000)} more` : "none"],
    ["Checksum", object.checksum],
  ];
  return element("dl", {}, ...all.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
}

function reason(it) {
  const tier = it.tier === "memory" ? "Memory" : "SSD";
  const parts = [element("h3", {}, `${tier}: ${it.held ? "is there" : "is not there yet"}`), element("p", {}, it.words)];
  if (it.learned?.returns.length > 1) parts.push(curve(it.learned.returns));
  return element("article", { class: "reason" }, ...parts);
}

/** The chance that it is read again, over a time whose steps grow. */
function curve(returns) {
  const [width, height] = [300, 64];
  const top = Math.max(...returns.map(({ chance }) => chance), 0.01);
  const x = (index) => (index / (returns.length - 1)) * (width - 8) + 4;
  const points = returns.map(({ chance }, index) => `${x(index).toFixed(1)},${(height - 4 - (chance / top) * (height - 10)).toFixed(1)}`);
  const last = returns.at(-1);
  const words = `The chance that it is read again: ${percent(returns[0].chance)} within ${seconds(returns[0].within_s)}, ${percent(last.chance)} within ${seconds(last.within_s)}`;
  const line = drawn("polyline", { points: points.join(" "), class: "curve" });
  return element("figure", {}, drawn("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", role: "img", "aria-label": words }, line), element("figcaption", { class: "quiet" }, `${words}.`));
}
