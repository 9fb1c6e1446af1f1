// The link to the server: requests with the token, and the stream of samples.

const TOKEN = "slackwater-token";
/** Pauses before the stream is asked for again, in milliseconds; the last one repeats. */
const PAUSES = [250, 1000, 2000, 5000, 10000];
/** A page that nobody sees for so long follows nothing, so that the server need not count for it. */
const HIDDEN = 5 * 60 * 1000;

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** Keeps what a header can carry; every token of a server is such. */
export function setToken(token) {
  if (!/^[!-~]+$/.test(token)) throw new Error("a token has letters, digits and signs of ASCII, and no spaces: copy the line again");
  sessionStorage.setItem(TOKEN, token);
}

export const forgetToken = () => sessionStorage.removeItem(TOKEN);

/** An answer that is not what was asked for. */
export class Refused extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

/** The page itself failed over an event. */
class Broken extends Error {}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  const token = sessionStorage.getItem(TOKEN);
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  throw new Refused(answer.status, body?.error_message ?? `the server answers with status ${answer.status}`);
}

/** The JSON at a path; `query` is encoded. */
export async function ask(method, path, query = {}, body = undefined) {
  const named = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  const text = named.size > 0 ? `${path}?${named}` : path;
  const answer = await send(text, { method, body: body === undefined ? undefined : JSON.stringify(body) });
  return answer.json();
}

/** Follows the samples for as long as the page is open. `told` has `sample`, `failure`, `lost`, `broken` and `refused`. */
export class Stream {
  #told;
  #ends = null;
  #failed = 0;
  #timer = null;
  #hidden = null;

  constructor(told) {
    this.#told = told;
    document.addEventListener("visibilitychange", () => this.#seen());
    // A tab that was opened behind others.
    if (document.hidden) this.#seen();
  }

  /** Begins, or begins again with what is known now. */
  async open() {
    this.close();
    const ends = new AbortController();
    this.#ends = ends;
    try {
      const answer = await send("api/v1/events", { signal: ends.signal });
      await this.#read(answer.body);
      if (!ends.signal.aborted) this.#again();
    } catch (error) {
      if (ends.signal.aborted) return;
      if (error instanceof Refused && error.status === 401) return this.#told.refused(error.message);
      if (error instanceof Broken) this.#told.broken(error.message);
      else this.#told.lost(error instanceof Refused ? error.message : "the server does not answer");
      ends.abort();
      this.#again();
    }
  }

  close() {
    this.#ends?.abort();
    clearTimeout(this.#timer);
    this.#ends = null;
    this.#timer = null;
  }

  #again() {
    this.#timer = setTimeout(() => this.open(), PAUSES[Math.min(this.#failed, PAUSES.length - 1)]);
    this.#failed += 1;
  }

  async #read(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      // Of several that came together only the last one says how things are.
      if (events.length > 0) this.#event(events.at(-1));
    }
  }

  #event(text) {
    const parts = Object.fromEntries(text.split("\n").map((line) => line.split(/: (.*)/s, 2)));
    try {
      const data = JSON.parse(parts.data);
      if (parts.event === "sample") this.#told.sample(data);
      else this.#told.failure(data.error_message);
    } catch (error) {
      reportError(error);
      throw new Broken(error.message);
    }
    // Only what was shown is a success: a page that fails over each sample asks less and less often.
    this.#failed = 0;
  }

  #seen() {
    clearTimeout(this.#hidden);
    if (document.hidden) this.#hidden = setTimeout(() => this.close(), HIDDEN);
    else if (this.#ends === null) this.open();
  }
}
