// SPDX-License-Identifier: Apache-2.0
// Talks to the server, and keeps the samples that it has taken.

const API = "page/api";

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

// ---- History

export const keyOf = (model) => `${model.namespace || ""}/${model.name}/${model.version}`;

const SPANS = { fine: 300, coarse: 3600 };
const RATES = ["requests", "errors", "inferences"], LATENCIES = ["mean", "p50", "p95", "p99", "batch"], GAUGES = ["pending", "running"];
const STREAMS = ["start50", "start95", "start99", "between50", "between95", "between99"];
const COLUMNS = [...RATES, ...LATENCIES, ...GAUGES];

const byNumber = (records) => new Map(records.map(([number, ...values]) => [number, values]));

// What a sample says of a model; it has no record of one that did nothing.
function pointOf({ time, seconds, memory, records, streams }, number) {
  const point = { time, seconds, memory: memory === null ? null : memory / 2 ** 20 };
  const values = records.get(number), ofStreams = streams.get(number);
  COLUMNS.forEach((name, at) => { point[name] = values ? values[at] : LATENCIES.includes(name) ? null : 0; });
  STREAMS.forEach((name, at) => { point[name] = ofStreams ? ofStreams[at] : null; });
  return point;
}

// The samples of the last minutes and, further apart, of the last hour; "" is the whole server.
export class Series {
  constructor() {
    this.range = SPANS.fine;
    this.clear();
  }

  clear() {
    this.samples = { fine: [], coarse: [] };
    this.known = new Map([["", { number: 0, since: 0 }]]);
    this.machine = {};
    this.hasCluster = false;
    this.current = new Map();
  }

  add({ now, models, fine, coarse }) {
    this.current = new Map(now.models.map((model) => [keyOf(model), model]));
    this.machine = now.machine;
    this.hasCluster = Boolean(now.has_cluster);
    for (const [number, namespace, name, version, since] of models) this.known.set(keyOf({ namespace, name, version }), { number, since });
    for (const [track, news] of Object.entries({ fine, coarse })) {
      const all = this.samples[track];
      for (const [time, seconds, memory, records, streams] of news) all.push({ time, seconds, memory, records: byNumber(records), streams: byNumber(streams) });
      const first = all.length ? all[all.length - 1].time - SPANS[track] : 0;
      all.splice(0, all.findIndex(({ time }) => time >= first));
    }
  }

  // The points of the last seconds: coarse ones and, after the last of them, fine ones; only fine ones
  // where these reach back as far.
  of(key, range = SPANS.fine) {
    const known = this.known.get(key), { fine, coarse } = this.samples;
    if (!known) return [];
    const long = range > SPANS.fine && coarse[0]?.time < fine[0]?.time ? coarse : [], end = long.length ? long[long.length - 1].time : 0;
    const all = [...long, ...fine.filter(({ time }) => time > end)];
    const first = Math.max(known.since, all.length ? all[all.length - 1].time - range : 0);
    return all.filter(({ time }) => time >= first).map((sample) => pointOf(sample, known.number));
  }
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
