// Samples hold counters; what happened in between is counted here.

/** Rates of the numbers on the page are means over so many samples, those of charts over one. */
const MEAN = 5;

const at = (sample, path) => path.split(".").reduce((value, name) => value?.[name], sample.stats) ?? 0;

/** The last samples of one life of a server. */
export class Rates {
  #samples = [];

  get latest() {
    return this.#samples.at(-1);
  }

  /** Whether it is another sample: who follows again is told the latest once more. */
  push(sample) {
    const before = this.latest;
    if (before && before.epoch === sample.epoch && before.time_s === sample.time_s) return false;
    // Counters of another life began anew.
    if (before && (before.epoch !== sample.epoch || before.time_s > sample.time_s)) this.#samples = [];
    this.#samples.push(sample);
    if (this.#samples.length > MEAN + 1) this.#samples.shift();
    return true;
  }

  /** What the counter at `path` of the statistics says now. */
  total(path) {
    return at(this.latest, path);
  }

  /** How fast it grew over the last samples; nothing before there are two. */
  mean(path) {
    return this.#between(this.#samples[0], path);
  }

  /** How fast it grew since the sample before. */
  last(path) {
    return this.#between(this.#samples.at(-2), path);
  }

  /** The shares of reads that memory and SSD served, of which there must be some. */
  hits(grown) {
    const [memory, ssd, missed] = ["reads.memory_hits", "reads.ssd_hits", "reads.misses"].map(grown);
    const all = memory + ssd + missed;
    return all > 0 ? { memory: memory / all, ssd: ssd / all } : null;
  }

  #between(before, path) {
    const now = this.latest;
    if (!before || before === now) return null;
    return Math.max(0, at(now, path) - at(before, path)) / (now.time_s - before.time_s);
  }
}
