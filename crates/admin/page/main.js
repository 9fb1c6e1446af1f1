// The page: follows the samples of the server and shows each.

import { quota, reload, removeAll } from "./actions.js";
import { hitChart, throughputChart } from "./charts.js";
import { decisionList } from "./decisions.js";
import { byId, write } from "./elements.js";
import { flow } from "./flow.js";
import { Rates } from "./rates.js";
import { explain, search } from "./search.js";
import { forgetToken, hasToken, setToken, Stream } from "./stream.js";
import { decisions, hottest, jobs, latency, nodes, tenants, tiles, warnings } from "./tables.js";

const ACTIONS = ["reload", "remove-all"];
const THEMES = ["system", "light", "dark"];

const rates = new Rates();
const picture = flow(byId("flow"));
const latest = decisionList(explain);
const charts = [hitChart(byId("hits"), byId("hits-legend")), throughputChart(byId("through"), byId("through-legend"))];

function status(tone, words) {
  const pill = byId("status");
  pill.className = `pill ${tone}`;
  write(pill, words);
}

function trouble(words) {
  const line = byId("trouble");
  line.hidden = words === null;
  write(line, words ?? "");
  byId("content").classList.toggle("stale", words !== null);
}

const stream = new Stream({
  sample(sample) {
    trouble(null);
    byId("sign-in").hidden = true;
    byId("content").hidden = false;
    for (const action of ACTIONS) byId(action).hidden = false;
    byId("forget").hidden = !hasToken();
    status(sample.ready ? "good" : "bad", sample.ready ? "serving" : "not serving");
    write(byId("address"), sample.address);
    byId("address").title = sample.address;
    const epoch = byId("epoch");
    epoch.hidden = false;
    write(epoch, `epoch ${sample.epoch}`);
    byId("first").hidden = !isUnused(sample);
    write(byId("first-put"), `printf hello | slackwater put greeting - --connect ${sample.address}`);
    write(byId("version"), `Slackwater ${sample.version}.`);
    show(sample);
  },
  failure(words) {
    status("bad", "failed");
    trouble(`The server cannot tell how things are: ${words}`);
  },
  lost(words) {
    status("bad", "no link");
    trouble(`What is below is as it was: ${words}. The page goes on by itself.`);
  },
  broken(words) {
    status("bad", "page failed");
    trouble(`This page cannot show what the server tells: ${words}. Reload the page.`);
  },
  refused(words) {
    status("fair", "needs a token");
    trouble(null);
    byId("content").hidden = true;
    for (const action of ACTIONS) byId(action).hidden = true;
    byId("sign-in").hidden = false;
    const why = byId("sign-in-why");
    why.hidden = !hasToken();
    write(why, hasToken() ? words : "");
    forgetToken();
    byId("forget").hidden = true;
    byId("token").focus();
  },
});

/** Whether it holds nothing, was never asked for or given anything, and takes what this machine sends without a key. */
function isUnused({ address, ready, stats }) {
  const asked = [stats.puts.stored, stats.puts.existed, stats.puts.refused, stats.reads.memory_hits, stats.reads.ssd_hits, stats.reads.misses];
  return ready && address.startsWith("tcp://") && stats.objects === 0 && asked.every((count) => count === 0);
}

function show(sample) {
  const isNew = rates.push(sample);
  warnings(sample);
  tiles(rates);
  picture(rates, sample);
  if (isNew) charts.forEach((push) => push(performance.now() / 1000, rates));
  nodes(sample);
  decisions(rates, sample);
  latest(sample);
  hottest(sample, explain);
  latency(sample);
  tenants(sample);
  jobs(sample);
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  try {
    setToken(byId("token").value.trim());
  } catch (error) {
    write(byId("sign-in-why"), error.message);
    byId("sign-in-why").hidden = false;
    return;
  }
  byId("token").value = "";
  stream.open();
});

byId("forget").addEventListener("click", () => {
  forgetToken();
  stream.open();
});

byId("set-quota").addEventListener("click", () => quota());
byId("reload").addEventListener("click", () => reload());
byId("remove-all").addEventListener("click", () => removeAll());

function themed(theme) {
  document.documentElement.className = theme === "system" ? "" : theme;
  write(byId("theme"), `Theme: ${theme}`);
  document.dispatchEvent(new Event("themed"));
}

byId("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(localStorage.getItem("slackwater-theme") ?? "system") + 1) % THEMES.length];
  localStorage.setItem("slackwater-theme", next);
  themed(next);
});

themed(localStorage.getItem("slackwater-theme") ?? "system");
search();
stream.open();
