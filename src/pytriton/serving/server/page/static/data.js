// SPDX-License-Identifier: Apache-2.0
// Talks to the server, and turns its counters into rates and percentiles.

const API = "page/api";
const KEPT = 150;

// ---- Requests

export const credentials = {
  read() {
    try { return JSON.parse(sessionStorage.getItem("headers")) || {}; } catch { return {}; }
  },
  write(headers) {
    try { sessionStorage.setItem("headers", JSON.stringify(headers)); } catch { this.read = () => headers; }
  },
};

export class Refused extends Error {}

export async function ask(path, options = {}) {
  const headers = { ...credentials.read(), ...options.headers };
  const response = await fetch(API + path, { cache: "no-store", ...options, headers });
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try { message = JSON.parse(text).error || text; } catch { /* no JSON: the text itself */ }
  const kind = response.status === 403 ? Refused : Error;
  throw new kind(message || `the server answered ${response.status}`);
}

export async function getJson(path) {
  return (await ask(path)).json();
}

// ---- Rates

export const keyOf = (model) => `${model.namespace || ""}/${model.name}/${model.version}`;

// The value below which a share of the events lies; `buckets` are [upper bound, count], ascending.
export function quantile(buckets, share) {
  const total = buckets.reduce((sum, [, count]) => sum + count, 0);
  if (!total) return null;
  let rank = share * total, lower = 0;
  for (const [bound, count] of buckets) {
    if (rank <= count && count) {
      return bound === Infinity ? lower : lower + (bound - lower) * (rank / count);
    }
    rank -= count;
    if (bound !== Infinity) lower = bound;
  }
  return lower;
}

function bucketsOf(now, before) {
  if (!now.bounds) return null;
  const old = before && before.counts && before.counts.length === now.counts.length ? before.counts : [];
  return now.counts.map((count, at) => [now.bounds[at] ?? Infinity, count - (old[at] || 0)]);
}

function merged(lists) {
  const sums = new Map();
  for (const [bound, count] of lists.flat()) sums.set(bound, (sums.get(bound) || 0) + count);
  return [...sums].sort(([a], [b]) => a - b);
}

// Inferences count those that succeeded and executions all, so batch sizes come from the rows of all.
const rowsOf = (model) => model.batches.reduce((total, [rows, count]) => total + rows * count, 0);

// What happened between two readings of a model.
function change(now, before, seconds) {
  const base = before && before.ok <= now.ok && before.executions <= now.executions ? before : null;
  const rose = (name) => (now[name] || 0) - (base?.[name] || 0);
  return {
    ok: rose("ok"), failed: rose("failed"), refused: rose("refused"), errors: rose("failed") - rose("cancelled") + rose("refused"), inferences: rose("inferences"), executions: rose("executions"),
    rows: rowsOf(now) - (base ? rowsOf(base) : 0), request_s: rose("request_s"), pending: now.pending, running: now.running, seconds,
    buckets: bucketsOf(now, base),
  };
}

function pointOf(time, changes) {
  const sum = (name) => changes.reduce((total, each) => total + each[name], 0);
  const seconds = changes.length ? changes[0].seconds : 1;
  const ok = sum("ok"), executions = sum("executions");
  const buckets = merged(changes.filter((each) => each.buckets).map((each) => each.buckets));
  const mean = ok ? sum("request_s") / ok * 1e3 : null;
  const at = (share) => { const value = quantile(buckets, share); return value === null ? null : value * 1e3; };
  return {
    time, requests: (ok + sum("failed") + sum("refused")) / seconds, failed: sum("failed") / seconds, errors: sum("errors") / seconds,
    inferences: sum("inferences") / seconds, mean, p50: at(0.5), p95: at(0.95), p99: at(0.99),
    batch: executions ? sum("rows") / executions : null,
    pending: sum("pending"), running: sum("running"),
  };
}

// The points of all models, and under "" those of the whole server.
export class Series {
  constructor() { this.clear(); }

  clear() {
    this.points = new Map([["", []]]);
    this.last = null;
    this.machine = {};
    this.hasCluster = false;
    this.current = new Map();
  }

  add(sample) {
    const current = new Map(sample.models.map((model) => [keyOf(model), model]));
    this.machine = sample.machine;
    this.hasCluster = Boolean(sample.has_cluster);
    if (this.last) {
      const seconds = Math.max(0.001, sample.time - this.last.time);
      const all = [];
      for (const [key, model] of current) {
        const one = change(model, this.last.current.get(key), seconds);
        all.push(one);
        this.push(key, pointOf(sample.time, [one]));
      }
      const whole = pointOf(sample.time, all);
      const unknown = Math.max(0, (sample.refused || 0) - (this.last.refused || 0)) / seconds; // they reached no model
      whole.errors += unknown;
      whole.requests += unknown;
      this.push("", whole);
    }
    for (const key of this.points.keys()) if (key && !current.has(key)) this.points.delete(key);
    this.last = { time: sample.time, current, refused: sample.refused };
    this.current = current;
  }

  push(key, point) {
    const points = this.points.get(key) || [];
    points.push(point);
    if (points.length > KEPT) points.shift();
    this.points.set(key, points);
  }

  of(key) { return this.points.get(key) || []; }
}

// ---- Texts

export function number(value, digits = 1) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  if (size >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return String(Number(value.toFixed(size < 1 ? digits + 1 : digits)));
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value >= 1e3) return `${number(value / 1e3)} s`;
  return value >= 1 ? `${number(value)} ms` : `${number(value * 1e3, 0)} µs`;
}

export function bytes(value) {
  if (!value) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at++; }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const parts = [[Math.floor(s / 86400), "d"], [Math.floor(s / 3600) % 24, "h"], [Math.floor(s / 60) % 60, "min"], [s % 60, "s"]];
  const first = parts.findIndex(([count]) => count);
  return first < 0 ? "0 s" : parts.slice(first, first + 2).map(([count, unit]) => `${count} ${unit}`).join(" ");
}
