// SPDX-License-Identifier: Apache-2.0
// The views of all models, of the server and of its API.

import { h, setText, codeBlock } from "./dom.js";
import { Chart, RECENT, rangeChoice, sparkline } from "./charts.js";
import { bytes, duration, getJson, keyOf, milliseconds, number, Refused } from "./data.js";
import { tokenNeeded } from "./log.js";
import { chartGrid, charts, instanceCount, isUnloaded, stateBadge, updateCharts } from "./model.js";
import { shapeText } from "./tensors.js";

const MAX_ROWS = 200;

const href = (model) => `#/models/${encodeURIComponent(model.name)}/${model.version || "-"}${model.namespace ? `/${encodeURIComponent(model.namespace)}` : ""}`;
const signature = (specs) => specs.map((spec) => `${spec.name} ${spec.datatype}${shapeText(spec.shape)}`).join(", ");

export function refusal(app, error) {
  const isToken = error instanceof Refused;
  return h("section", { class: "card" }, h("p", { class: "problem", role: "alert" }, error.message),
    isToken ? h("button", { type: "button", onclick: () => app.askToken() }, "Give the token") : null);
}

// ---- Models

export class ModelsView {
  constructor(app) {
    this.app = app;
    this.charts = charts();
    this.filter = h("input", { type: "search", id: "filter", placeholder: "Filter models", "aria-label": "Filter models", oninput: () => this.rows() });
    this.count = h("span", { class: "note", role: "status" });
    this.tbody = h("tbody", {});
    this.shown = new Map();
    const columns = ["Model", "State", "Requests/s", "", "Errors/s", "p95", "Waiting", "Batch"];
    this.element = h("div", {}, h("h1", { class: "hidden" }, "Models"), chartGrid(this.charts, app),
      h("section", { class: "card" }, h("div", { class: "row" }, h("h2", {}, "Models"), this.count, h("span", { class: "grow" }), this.filter),
        h("div", { class: "scroll" }, h("table", { class: "models" },
          h("thead", {}, h("tr", {}, columns.map((name) => h("th", { scope: "col" }, name)))), this.tbody)),
        this.empty = h("p", { class: "empty", hidden: true })));
    this.rows();
  }

  rows() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (model) => words.every((word) => `${model.name} ${model.version} ${model.state || "not loaded"} ${model.platform || ""}`.toLowerCase().includes(word));
    const found = this.app.models.filter(fits);
    const shown = found.slice(0, MAX_ROWS);
    this.shown = new Map(shown.map((model) => [keyOf(model), this.row(model)]));
    this.tbody.replaceChildren(...[...this.shown.values()].map((row) => row.element));
    setText(this.count, words.length ? `${found.length} of ${this.app.models.length}` : `${found.length}`);
    this.empty.hidden = shown.length === found.length && shown.length > 0;
    const more = found.length - shown.length;
    setText(this.empty, this.app.problem || (found.length ? `And ${more} more: filter them.` : words.length ? "No model has this name." : "No models yet."));
    this.numbers();
  }

  row(model) {
    const cells = Array.from({ length: 6 }, (_, at) => h("td", { class: at === 1 ? "spark-cell" : "number" }));
    const tensors = model.inputs ? h("div", { class: "note signature" }, `${signature(model.inputs)} → ${signature(model.outputs)}`) : null;
    const name = h("td", {}, h("a", { href: href(model) }, model.name), " ", h("small", {}, model.version ? `v${model.version}` : ""),
      model.namespace ? h("small", {}, ` ${model.namespace}`) : null, tensors);
    const lack = h("div", { class: "note reason" });
    const state = h("td", {}, stateBadge(model), lack, model.reason && !isUnloaded(model) ? h("div", { class: "note reason" }, model.reason.split("\n")[0]) : null);
    const element = h("tr", { onclick: (event) => { if (!event.target.closest("a") && !getSelection().toString()) location.hash = href(model); } }, name, state, cells);
    return { model, cells, lack, element };
  }

  numbers() {
    for (const { model, cells, lack } of this.shown.values()) {
      const now = this.app.series.current.get(keyOf(model));
      setText(lack, now?.missing ? instanceCount(now) : "");
      const points = now ? this.app.series.of(keyOf(model)) : [];
      const last = points[points.length - 1];
      const lastWith = (value) => points.slice(-RECENT).reverse().find((point) => point[value] !== null)?.[value];
      setText(cells[0], last ? number(last.requests) : "–");
      cells[1].replaceChildren(sparkline(points, "requests"));
      setText(cells[2], last ? number(last.errors) : "–");
      cells[2].classList.toggle("is-bad", Boolean(last && last.errors > 0));
      setText(cells[3], milliseconds(lastWith("p95") ?? lastWith("mean")));
      setText(cells[4], last ? number(last.pending) : "–");
      setText(cells[5], number(lastWith("batch")));
    }
  }

  modelsChanged() { this.rows(); }

  update() {
    updateCharts(this.charts, this.app.series, "", "Latency, no streams");
    this.numbers();
  }
}

// ---- Server

export class ServerView {
  constructor(app) {
    this.app = app;
    this.facts = h("dl", { class: "facts-list" });
    this.settings = h("div", {});
    this.memory = new Chart("Memory of the server", [{ name: "memory", label: "resident", area: true }], (value) => (value === null ? "–" : `${number(value)} MiB`));
    this.element = h("div", {}, h("h1", {}, "Server"), rangeChoice(app.series, () => this.update()), h("div", { class: "charts" }, this.memory.element), h("div", { class: "columns" },
      h("section", { class: "card" }, h("h2", {}, "Now"), this.facts), h("section", { class: "card" }, h("h2", {}, "Settings"), this.settings)));
    this.loadSettings();
  }

  update() {
    const { server, series } = this.app, { machine } = series;
    this.memory.update(series.of("", series.range), series.range);
    const address = (name) => { const it = server.addresses[name]; return it ? `${it.address}:${it.port}` : "off"; };
    const rows = [
      ["Name", server.id], ["Version", `${server.version}, speaks Triton ${server.protocol_version}, Python ${server.python}`],
      ["Up for", duration(Date.now() / 1e3 - server.started)], ["Process", String(server.pid)],
      ["HTTP", address("http")], ["gRPC", address("grpc")], ["Metrics", address("metrics")],
      ["Memory of the server", bytes(machine.server_memory)],
    ];
    if (machine.memory_total) {
      rows.push(["Memory of the machine", `${bytes(machine.memory_used)} of ${bytes(machine.memory_total)}`], ["Processors", `${Math.round(machine.cpu * 100)} % busy`]);
    }
    (machine.gpus || []).forEach((gpu, at) => rows.push([`GPU ${at}`, `${Math.round((gpu.utilization || 0) * 100)} % busy, ${bytes(gpu.memory_used)} of ${bytes(gpu.memory_total)}`]));
    if (this.facts.children.length !== rows.length * 2) this.facts.replaceChildren(...rows.flatMap(([name]) => [h("dt", {}, name), h("dd", {})]));
    rows.forEach(([, text], at) => setText(this.facts.children[at * 2 + 1], text));
  }

  async loadSettings() {
    try {
      const { settings } = await getJson("/settings");
      this.settings.replaceChildren(h("dl", { class: "facts-list" }, settings.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
    } catch (error) {
      this.settings.replaceChildren(error instanceof Refused ? tokenNeeded(this.app, "This list") : refusal(this.app, error));
    }
  }
}

// ---- API

export class ApiView {
  constructor(app) {
    this.app = app;
    this.list = h("div", {}, h("p", { class: "empty" }, "Loading …"));
    this.filter = h("input", { type: "search", id: "filter", placeholder: "Filter paths", "aria-label": "Filter paths", oninput: () => this.show() });
    this.element = h("div", {}, h("section", { class: "card" },
      h("div", { class: "row" }, h("h1", {}, "HTTP API"), h("a", { href: "openapi.json", class: "note" }, "openapi.json"), h("span", { class: "grow" }), this.filter), this.list));
    this.load();
  }

  async load() {
    try {
      this.document = await getJson("/../../openapi.json");
      this.show();
    } catch (error) {
      this.list.replaceChildren(refusal(this.app, error));
    }
  }

  show() {
    const text = this.filter.value.toLowerCase();
    const all = Object.entries(this.document?.paths || {}).filter(([path]) => path.toLowerCase().includes(text));
    const groups = new Map();
    for (const [path, operations] of all.slice(0, MAX_ROWS)) {
      for (const [method, operation] of Object.entries(operations)) {
        const name = operation.tags?.[0] || "Server";
        groups.set(name, [...(groups.get(name) || []), this.operation(path, method, operation)]);
      }
    }
    const tags = new Map((this.document?.tags || []).map((tag) => [tag.name, tag.description]));
    const rows = [...groups].map(([name, operations]) => h("section", { class: "group" }, h("h2", {}, name), tags.get(name) ? h("p", {}, tags.get(name)) : null, operations));
    const more = all.length > MAX_ROWS ? [h("p", { class: "note" }, `And ${all.length - MAX_ROWS} more: filter them.`)] : [];
    this.list.replaceChildren(...rows, ...more);
  }

  operation(path, method, operation) {
    const needs = (operation.security || []).flatMap((each) => Object.keys(each)).map((name) => name.replace("header-", "")).join(", ");
    const details = h("details", { class: "operation" }, h("summary", {}, h("b", { class: "method", "data-method": method }, method.toUpperCase()), h("code", {}, path), h("span", { class: "note" }, operation.summary, needs ? ` · needs the header ${needs}` : "")));
    details.addEventListener("toggle", () => {
      if (!details.open || details.children.length > 1) return;
      const body = operation.requestBody?.content["application/json"]?.schema;
      const answer = operation.responses["200"];
      if (body) details.append(h("h3", {}, "Request"), codeBlock(JSON.stringify(body, null, 2), "Schema of the request"));
      details.append(h("h3", {}, "Answer"), codeBlock(JSON.stringify(answer.content || answer, null, 2), "Schema of the answer"));
    });
    return details;
  }

  update() {}
}
