// What changes something: each asks before it acts, and says what came out.

import { byId, element, write } from "./elements.js";
import { many, parseBytes } from "./format.js";
import { ask } from "./stream.js";

/**
 * A dialog: `act` gets the values of `fields` and gives the sentence that says what was done; what it throws stays in the
 * dialog, to be mended. `other` is a second thing that may be done, by its button alone: the key Enter never does it.
 */
function confirm({ title, words, fields = [], verb, danger = false, act, other }) {
  const dialog = byId("dialog");
  const inputs = fields.map((field) => ({ ...field, input: element("input", { ...field.attributes, autocomplete: "off", spellcheck: "false" }) }));
  const problem = element("p", { class: "problem", role: "alert", hidden: true });
  const does = element("button", { type: "submit", class: danger ? "danger" : "first" }, verb);
  const otherwise = other && element("button", { type: "button", class: "danger", click: () => run(other.act) }, other.verb);
  const back = element("button", { type: "button", click: () => dialog.close() }, "Back");
  const labels = inputs.map(({ label, input }) => element("label", { class: input.type === "checkbox" ? "check" : "wide" }, ...(input.type === "checkbox" ? [input, label] : [label, input])));
  const form = element("form", {}, element("h2", { id: "dialog-title" }, title), element("p", {}, words), ...labels, problem, element("div", { class: "buttons" }, back, otherwise, does));
  const acts = [does, otherwise].filter(Boolean);
  const run = async (act) => {
    acts.forEach((button) => (button.disabled = true));
    try {
      // As they were typed: a name may begin or end with spaces.
      const values = Object.fromEntries(inputs.map(({ name, input }) => [name, input.type === "checkbox" ? input.checked : input.value]));
      const done = await act(values);
      // Who pressed Escape meanwhile may have another dialog open.
      if (form.isConnected) dialog.close();
      tell(done);
    } catch (error) {
      write(problem, error.message);
      problem.hidden = false;
      if (!form.isConnected || !dialog.open) tell(error.message);
    }
    acts.forEach((button) => (button.disabled = false));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(act);
  });
  dialog.replaceChildren(form);
  dialog.showModal();
}

function tell(words) {
  const told = byId("told");
  told.replaceChildren(element("p", {}, words));
  told.firstElementChild.addEventListener("animationend", () => told.replaceChildren());
}

function size(text, name) {
  const bytes = parseBytes(text);
  if (bytes === null) throw new Error(`${name} is no size: write it as 512MiB or 2GiB`);
  return bytes;
}

export function drain(node) {
  confirm({
    title: `Drain node ${node}?`,
    words: "Its values go to other nodes, and it takes nothing new from now on. Readers find them all the time. Cancelling the job lets it take values again.",
    fields: [{ name: "rate", label: "Bytes in a second at most", attributes: { placeholder: "as many as there can be" } }],
    verb: "Drain",
    act: async ({ rate }) => {
      const body = { segments: [String(node)] };
      if (rate !== "") body.bytes_per_second = size(rate, "the rate");
      const { job_id } = await ask("POST", "api/v1/drain_jobs", {}, body);
      return `Job ${job_id} drains node ${node}.`;
    },
  });
}

export function cancel(job) {
  confirm({
    title: `Cancel job ${job}?`,
    words: "What is being carried arrives; the rest stays where it is. What it drained takes new values again.",
    verb: "Cancel the job",
    act: async () => {
      await ask("POST", "api/v1/drain_jobs/cancel", { job_id: job });
      return `Job ${job} is cancelled.`;
    },
  });
}

export function quota(tenant) {
  const named = tenant === undefined ? [{ name: "tenant", label: "Tenant", attributes: { required: true } }] : [];
  confirm({
    title: tenant === undefined ? "Set a quota" : `Set the quota of ${tenant}`,
    words: "The bytes that the tenant may hold. Puts that do not fit replace its own objects or are refused. The quota of a tenant without objects can be forgotten.",
    fields: [
      ...named,
      { name: "memory", label: "Memory", attributes: { required: true, placeholder: "2GiB" } },
      { name: "ssd", label: "SSD", attributes: { required: true, placeholder: "20GiB" } },
    ],
    verb: "Set the quota",
    act: async ({ tenant: typed, memory, ssd }) => {
      const whose = tenant ?? typed;
      const body = { memory_quota_bytes: size(memory, "the quota of memory"), ssd_quota_bytes: size(ssd, "the quota of SSD") };
      await ask("PUT", "api/v1/tenant_quotas", { tenant_id: whose }, body);
      return `The quota of ${whose} is set.`;
    },
    other: {
      verb: "Forget the quota",
      act: async ({ tenant: typed }) => {
        const whose = tenant ?? typed;
        if (whose === "") throw new Error("which tenant's? Type its name");
        await ask("DELETE", "api/v1/tenant_quotas", { tenant_id: whose });
        return `The quota of ${whose} is forgotten.`;
      },
    },
  });
}

export function reload() {
  confirm({
    title: "Read keys again?",
    words: "The list of keys that may connect and the token of this address are read again from their files: change these first. Links whose key is not in the list any more end at once. The key of the server itself is used after a restart.",
    verb: "Read them again",
    act: async () => {
      await ask("POST", "api/v1/reload");
      return "Keys and tokens are read again.";
    },
  });
}

export function removeOne({ key, tenant }) {
  confirm({
    title: "Remove this object?",
    words: `${key} is gone for good, from memory and SSD.`,
    fields: [{ name: "force", label: "Even while readers hold leases on it", attributes: { type: "checkbox" } }],
    verb: "Remove",
    danger: true,
    act: async ({ force }) => {
      await ask("POST", "api/v1/remove", { key, tenant, force: String(force) });
      byId("found").replaceChildren();
      return `${key} is removed.`;
    },
  });
}

export function removeAll() {
  confirm({
    title: "Remove objects?",
    words: "All objects of the tenant, or of every tenant where none is named, are gone for good, from memory and SSD.",
    fields: [
      { name: "tenant", label: "Tenant", attributes: { placeholder: "every tenant" } },
      { name: "typed", label: "Type remove to go on", attributes: { required: true, pattern: "remove", placeholder: "remove" } },
      { name: "force", label: "Those too that readers hold leases on", attributes: { type: "checkbox" } },
    ],
    verb: "Remove",
    danger: true,
    act: async ({ tenant, force }) => {
      const { removed } = await ask("POST", "api/v1/remove_all", { tenant, force: String(force) });
      return removed === 1 ? "1 object is removed." : `${many(removed, "object")} are removed.`;
    },
  });
}
