// Numbers for people. The exact ones stand in titles.

const STEPS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Three figures and a unit of powers of 1024. */
export function bytes(count) {
  let step = 0;
  let value = Math.abs(count);
  while (value >= 1023.5 && step < STEPS.length - 1) {
    value /= 1024;
    step += 1;
  }
  const digits = step === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(step === 0 ? 0 : digits)} ${STEPS[step]}`;
}

export const byteRate = (rate) => `${bytes(rate)}/s`;

/** A count with separators, or with a suffix from a million on. */
export function count(value) {
  if (value >= 999_950_000) return `${(value / 1e9).toFixed(2)} G`;
  if (value >= 999_950) return `${(value / 1e6).toFixed(2)} M`;
  return Math.round(value).toLocaleString("en-US");
}

/** So many of something, whose name takes an s for more than one. */
export const many = (value, name) => `${count(value)} ${name}${value === 1 ? "" : "s"}`;

/** How often in a second. */
export function rate(value) {
  if (value === 0) return "0/s";
  if (value < 0.05) return "< 0.1/s";
  return `${value < 9.95 ? value.toFixed(1) : count(value)}/s`;
}

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** A time from microseconds. */
export function micros(value) {
  if (value < 999.5) return `${value.toFixed(value < 9.95 ? 1 : 0)} µs`;
  if (value < 999_500) return `${(value / 1e3).toFixed(value < 9_950 ? 2 : 1)} ms`;
  return `${(value / 1e6).toFixed(2)} s`;
}

/** A time from seconds, in its largest unit. */
export function seconds(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 90) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 172_800) return `${(value / 3600).toFixed(1)} h`;
  return `${Math.round(value / 86_400)} days`;
}

/** Bytes from what somebody types: "64MiB", "1.5 G", "1000"; nothing where it is no size. Units are powers of 1024. */
export function parseBytes(text) {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?\s*$/i.exec(text);
  if (!match) return null;
  const power = ["", "k", "m", "g", "t", "p"].indexOf(match[2].toLowerCase());
  const value = Math.round(Number(match[1]) * 1024 ** power);
  return Number.isSafeInteger(value) ? value : null;
}
