// SPDX-License-Identifier: Apache-2.0
// Line charts of the last minutes or of the last hour, drawn as SVG.

import { h, svg, setText } from "./dom.js";

const HEIGHT = 120, LEFT = 40, RIGHT = 6, TOP = 8, BOTTOM = 18, SHORTEST_S = 60, GAP_S = 5, LABELS_WIDTH = 215;
export const RECENT = 5; // samples, ten seconds
const RANGES = [[300, "5 min"], [900, "15 min"], [3600, "1 h"]];

// The smallest round number that is not below a value: 1, 2 or 5 times a power of ten.
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

// Runs of points without gaps: where nothing was measured, no line is drawn.
export function runs(points, name) {
  const found = [];
  let last = null;
  for (const point of points) {
    const value = point[name];
    if (value === null || value === undefined) { last = null; continue; }
    if (!last || point.time - (point.seconds || 0) - last > GAP_S) found.push([]);
    found[found.length - 1].push(point);
    last = point.time;
  }
  return found;
}

export class Chart {
  // `lines` are {name, label, area, tone}; `format` makes texts of values.
  constructor(title, lines, format) {
    this.lines = lines;
    this.format = format;
    this.title = title;
    this.head = lines.length > 2 ? 1 : 0; // the line whose value is shown large
    this.now = h("strong", { class: "now" }, "–");
    this.values = lines.map(() => h("b", {}, "–"));
    this.legend = h("div", { class: "legend" }, lines.map((line, at) =>
      h("span", { class: `line-${line.tone ?? at}` }, h("i", {}), line.label, " ", this.values[at])));
    this.drawing = svg("svg", { class: "chart", role: "img", height: HEIGHT, "aria-label": title });
    this.element = h("section", { class: "card chart-card" },
      h("div", { class: "chart-head" }, this.heading = h("h3", {}, title), h("span", {}, this.head ? h("small", {}, `${lines[1].label} `) : null, this.now)), this.drawing, this.legend);
    this.points = [];
    this.at = null;
    this.drawing.addEventListener("pointermove", (event) => this.point(event));
    this.drawing.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
  }

  // The range is the longest time that is drawn, in seconds.
  update(points, range) {
    this.points = points;
    this.range = range;
    this.draw();
  }

  rename(title) {
    this.title = title;
    setText(this.heading, title);
  }

  point(event) {
    const box = this.drawing.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const end = this.end();
    this.at = end - this.seconds() * (1 - Math.min(1, Math.max(0, share)));
    this.draw();
  }

  // The time that is drawn: a minute at first, then as long as there are points.
  seconds() {
    const age = this.points.length ? this.end() - this.points[0].time : 0;
    return Math.min(this.range || SHORTEST_S, Math.max(SHORTEST_S, Math.ceil(age / 60) * 60));
  }

  end() { return this.points.length ? this.points[this.points.length - 1].time : 0; }

  // The newest values; where nothing was measured just now, those of a moment ago, as in the table.
  newest() {
    const last = this.points.slice(-RECENT).reverse();
    if (!last.length) return undefined;
    const values = this.lines.map(({ name }) => [name, last.find((point) => (point[name] ?? null) !== null)?.[name] ?? null]);
    return { ...last[0], ...Object.fromEntries(values) };
  }

  chosen() {
    if (this.at === null) return this.newest();
    const distance = (point) => Math.abs(point.time - this.at);
    return this.points.reduce((best, point) => (!best || distance(point) < distance(best) ? point : best), null);
  }

  draw() {
    const width = this.drawing.clientWidth || 300;
    const end = this.end(), length = this.seconds(), begin = end - length;
    const shown = this.points.filter((point) => point.time >= begin);
    const most = Math.max(0, ...this.lines.flatMap(({ name }) => shown.map((point) => point[name] || 0)));
    const top = roundUp(most);
    const x = (time) => LEFT + (width - LEFT - RIGHT) * (time - begin) / length;
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const parts = [0, 0.5, 1].flatMap((share) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(share * top), y2: y(share * top) }),
      svg("text", { x: LEFT - 5, y: y(share * top) + 4, "text-anchor": "end" }, this.format(share * top)),
    ]);
    for (const [share, anchor] of [[1, "start"], [0.5, "middle"], [0, "end"]]) {
      if (share === 0.5 && width - LEFT - RIGHT < LABELS_WIDTH) continue; // three labels would overlap
      const ago = share * length, text = ago >= 60 ? `${ago / 60} min ago` : `${ago} s ago`;
      parts.push(svg("text", { x: x(end - ago), y: HEIGHT - 4, "text-anchor": anchor }, ago ? text : "now"));
    }
    for (let at = this.lines.length - 1; at >= 0; at--) parts.push(...this.line(at, shown, x, y));
    const chosen = this.chosen();
    if (this.at !== null && chosen) {
      parts.push(svg("line", { class: "cursor", x1: x(chosen.time), x2: x(chosen.time), y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.drawing.replaceChildren(...parts);
    this.tell(chosen);
  }

  line(at, points, x, y) {
    const { name, area, tone = at } = this.lines[at];
    const drawn = [];
    for (const run of runs(points, name)) {
      const path = run.map((point, index) => `${index ? "L" : "M"}${x(point.time).toFixed(1)} ${y(point[name]).toFixed(1)}`).join("");
      const first = x(run[0].time).toFixed(1), last = x(run[run.length - 1].time).toFixed(1);
      if (area) drawn.push(svg("path", { class: `area line-${tone}`, d: `${path}L${last} ${y(0)}L${first} ${y(0)}Z` }));
      drawn.push(run.length > 1
        ? svg("path", { class: `stroke line-${tone}`, d: path })
        : svg("circle", { class: `dot line-${tone}`, r: 2.5, cx: first, cy: y(run[0][name]) }));
    }
    return drawn;
  }

  tell(point) {
    const texts = this.lines.map(({ name }) => (point ? this.format(point[name]) : "–"));
    texts.forEach((text, at) => setText(this.values[at], text));
    setText(this.now, texts[this.head]);
    const { name, tone } = this.lines[this.head];
    this.now.classList.toggle("is-bad", tone === "bad" && point?.[name] > 0);
    const label = this.lines.map((line, at) => `${line.label} ${texts[at]}`).join(", ");
    this.drawing.setAttribute("aria-label", `${this.title}: ${label}`);
  }
}

// Buttons that choose how much time the charts show; the choice is kept for the next visit.
export function rangeChoice(series, changed) {
  try { series.range = Number(localStorage.getItem("range")) || series.range; } catch { /* the default */ }
  const buttons = RANGES.map(([seconds, label]) => h("button", { type: "button", class: "quiet", onclick: () => choose(seconds) }, label));
  const show = () => buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(RANGES[at][0] === series.range)));
  function choose(seconds) {
    series.range = seconds;
    try { localStorage.setItem("range", seconds); } catch { /* it lasts until the page is left */ }
    show();
    changed();
  }
  show();
  return h("div", { class: "range", role: "group", "aria-label": "Time that charts show" }, buttons);
}

// A line without axes for a row of a table.
export function sparkline(points, name) {
  const width = 96, height = 22;
  const last = points.slice(-60), step = width / Math.max(15, last.length - 1);
  const most = Math.max(1e-9, ...last.map((point) => point[name] || 0));
  const path = last.map((point, at) =>
    `${at ? "L" : "M"}${(width - (last.length - 1 - at) * step).toFixed(1)} ${(height - 2 - (point[name] || 0) / most * (height - 4)).toFixed(1)}`);
  return svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    svg("path", { class: "stroke line-0", d: path.join("") || "M0 0" }));
}
