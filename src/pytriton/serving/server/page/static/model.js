// SPDX-License-Identifier: Apache-2.0
// The view of one model: its charts, a form that sends requests, examples, configuration.

import { h, byId, setText, codeBlock } from "./dom.js";
import { Chart, rangeChoice } from "./charts.js";
import { Instances, instancesOf } from "./cluster.js";
import { FailureList } from "./failures.js";
import { ask, bytes, getJson, keyOf, milliseconds, number, Refused } from "./data.js";
import { EventReader, exampleOf, examples, isJson, isText, requestBody, shapeText, tensorText } from "./tensors.js";

const MAX_SHOWN = 200; // responses of a stream
const path = (model) => `/v2/models/${encodeURIComponent(model.name)}/versions/${model.version}`;

const shares = (name) => [50, 95, 99].map((share) => ({ name: `${name}${share}`, label: `p${share}` }));

export function charts() {
  return {
    requests: new Chart("Requests/s", [
      { name: "requests", label: "requests", area: true }, { name: "inferences", label: "inferences" }], (value) => number(value)),
    errors: new Chart("Errors/s", [{ name: "errors", label: "failed or refused", area: true, tone: "bad" }], (value) => number(value)),
    latency: new Chart("Latency", [
      { name: "p50", label: "p50" }, { name: "p95", label: "p95" }, { name: "p99", label: "p99" }], milliseconds),
    batch: new Chart("Batch size, mean", [{ name: "batch", label: "per execution", area: true }], (value) => number(value)),
    queue: new Chart("Queue", [
      { name: "pending", label: "waiting", area: true }, { name: "running", label: "running" }], (value) => number(value)),
    start: new Chart("First response", shares("start"), milliseconds),
    between: new Chart("Between responses", shares("between"), milliseconds),
  };
}

// Without histograms there are means only.
export function meanIfNeeded(points) {
  return points.map((point) => (point.p50 === null && point.mean !== null ? { ...point, p50: point.mean, p95: point.mean } : point));
}

export function chartGrid(all, app) {
  const choice = rangeChoice(app.series, () => app.view.update());
  return h("div", {}, choice, h("div", { class: "charts" }, Object.values(all).map((chart) => chart.element)));
}

// Streams have charts of their own where there are any; `latency` is the name of that of whole requests.
export function updateCharts(all, series, key, latency) {
  const points = series.of(key, series.range);
  all.start.element.hidden = all.between.element.hidden = !points.some((point) => point.start50 !== null || point.between50 !== null);
  // One more than fits into a row would be alone in the next one.
  all.start.element.parentNode.classList.toggle("is-many", !all.start.element.hidden);
  all.latency.rename(all.start.element.hidden ? "Latency" : latency);
  for (const chart of Object.values(all)) chart.update(chart === all.latency ? meanIfNeeded(points) : points, series.range);
}

// Somebody unloaded it: that is no failure.
export const isUnloaded = (model) => model.state === "UNAVAILABLE" && model.reason === "unloaded";

export function stateBadge(model) {
  const state = isUnloaded(model) ? "UNLOADED" : model.state || "NOT LOADED";
  return h("span", { class: "badge", "data-state": state }, state.toLowerCase().replace("_", " "));
}

// "2 instances", or "0 of 3 instances" where some ended and are not back yet.
export function instanceCount({ instances, missing }) {
  const all = instances + missing;
  return `${missing ? `${instances} of ` : ""}${all} ${all === 1 ? "instance" : "instances"}`;
}

export class ModelView {
  constructor(app, model) {
    this.app = app;
    this.model = model;
    this.charts = charts();
    this.facts = h("p", { class: "facts" });
    this.instances = new Instances(false);
    this.places = h("section", { class: "card", hidden: true }, h("h2", {}, "Instances"), this.instances.element);
    this.failures = new FailureList(app, model);
    this.element = h("div", {}, this.head(), chartGrid(this.charts, app), this.failures.element, this.places, this.body());
    this.sending = null;
  }

  stop() { if (this.sending) this.sending.abort(); }

  update() {
    const key = keyOf(this.model);
    updateCharts(this.charts, this.app.series, key, "Duration of streams");
    const now = this.app.series.current.get(key);
    const parts = [];
    if (this.model.platform) parts.push(this.model.platform);
    parts.push(this.model.max_batch_size ? `batches of up to ${this.model.max_batch_size}` : "no batching");
    if (this.model.decoupled) parts.push("streams responses");
    if (this.model.is_sequence) parts.push("keeps sequences");
    if (now) {
      parts.push(instanceCount(now));
      if (now.gpu_memory) parts.push(`${bytes(now.gpu_memory)} of GPU memory`);
      if (now.to_gpu || now.to_host) parts.push(`${bytes(now.to_gpu)} copied to the GPU, ${bytes(now.to_host)} from it`);
      parts.push(`${number(now.ok)} answered, ${number(now.failed)} failed${now.refused ? `, ${number(now.refused)} refused` : ""}`);
    }
    this.failures.update();
    setText(this.facts, parts.join(" · "));
    const rows = instancesOf(this.app.cluster, this.model);
    this.places.hidden = !rows.length;
    this.instances.update(rows);
  }

  head() {
    const { model } = this;
    const back = h("a", { href: "#/", class: "back" }, "← Models");
    const title = h("h1", {}, model.name, " ", h("small", {}, model.version ? `version ${model.version}` : ""));
    const reason = model.reason && !isUnloaded(model) ? h("p", { class: "problem" }, model.reason) : null;
    return h("div", { class: "model-head" }, back, h("div", { class: "row" }, title, stateBadge(model), h("span", { class: "grow" }), this.controls()), model.description ? h("p", {}, model.description) : null, reason, this.facts);
  }

  controls() {
    if (!this.app.server.can_load) return null;
    const isReady = this.model.state === "READY";
    const button = (name, label) => h("button", { type: "button", onclick: () => this.app.control(this.model.name, name) }, label);
    return h("span", { class: "buttons" }, isReady ? button("unload", "Unload") : null, isReady && this.model.is_bound ? null : button("load", isReady ? "Reload" : "Load"));
  }

  body() {
    const { model } = this;
    if (!model.inputs) {
      const why = model.state === "READY" ? "Its inputs and outputs are not shown without the token." : "It is not served, so it takes no requests.";
      return h("section", { class: "card" }, h("p", { class: "empty" }, why));
    }
    return h("div", { class: "columns" },
      h("div", {}, this.form(), this.answer()),
      h("div", {}, this.tensors(), this.examples(), this.document("Configuration", "/config", "model-config"), this.document("Statistics", "/stats", "statistics")));
  }

  // ---- Form

  form() {
    this.fields = this.model.inputs.map((spec) => this.field(spec));
    this.parameters = h("textarea", { id: "parameters", rows: 2, spellcheck: "false", placeholder: '{"sequence_id": 1, "sequence_start": true}' });
    this.send = h("button", { class: "primary", type: "submit" }, "Send");
    this.stopButton = h("button", { type: "button", hidden: true, onclick: () => this.stop() }, "Stop");
    const cannot = this.model.inputs.some((spec) => !isJson(spec));
    const form = h("form", { class: "card", onsubmit: (event) => { event.preventDefault(); this.submit(); } },
      h("h2", {}, "Ask it"), this.fields.map((field) => field.element),
      h("details", {}, h("summary", {}, "Parameters"), h("label", { for: "parameters" }, "A JSON object; id is the id of the request"), this.parameters),
      cannot ? h("p", { class: "problem" }, "JSON has no form of FP16 and BF16: use a client that sends binary tensors.") : null,
      h("div", { class: "buttons" }, this.send, this.stopButton));
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.submit(); }
    });
    return form;
  }

  field(spec) {
    const id = `input-${spec.name}`;
    const note = h("span", { class: "note", id: `${id}-note` }, isText(spec)
      ? "A text, or a JSON list of texts" : `${spec.datatype === "BOOL" ? "true, false" : "Numbers"} or a JSON list, or a word: zeros, ones, random`);
    const area = h("textarea", { id, rows: isText(spec) ? 3 : 2, spellcheck: "false", "aria-describedby": `${id}-note` });
    area.value = exampleOf(spec);
    const use = spec.optional ? h("input", { type: "checkbox", "aria-label": `Send ${spec.name}` }) : null;
    if (use) {
      area.disabled = true;
      use.addEventListener("change", () => { area.disabled = !use.checked; if (use.checked) area.focus(); });
    }
    const label = h("label", { for: id }, spec.name, " ", h("code", {}, `${spec.datatype} ${shapeText(spec.shape)}`));
    const element = h("div", { class: "field" }, h("div", { class: "row" }, use, label, spec.optional ? h("span", { class: "note" }, "optional") : null), area, note);
    return { spec, area, use, element };
  }

  async submit() {
    if (this.sending) return;
    let body;
    try {
      const texts = {};
      for (const { spec, area, use } of this.fields) if (!use || use.checked) texts[spec.name] = area.value;
      body = requestBody(this.model, texts, this.parameters.value);
    } catch (error) {
      this.fail(error.message);
      return;
    }
    this.sending = new AbortController();
    this.send.disabled = true;
    this.stopButton.hidden = false;
    const began = performance.now();
    this.outcome.replaceChildren(h("p", { class: "note" }, "Waiting for the answer …"));
    try {
      await (this.model.decoupled ? this.stream(body, began) : this.infer(body, began));
    } catch (error) {
      if (error.name === "AbortError") this.line("Stopped.");
      else if (error instanceof Refused) this.refused(error);
      else if (error instanceof TypeError) this.fail("The server did not answer: the connection was lost.");
      else this.fail(error.message);
    } finally {
      this.sending = null;
      this.send.disabled = false;
      this.stopButton.hidden = true;
    }
  }

  request(body, headers) {
    return ask(`${path(this.model)}/infer`, { method: "POST", headers, body: JSON.stringify(body), signal: this.sending.signal });
  }

  async infer(body, began) {
    const answer = await (await this.request(body, {})).json();
    const took = milliseconds(performance.now() - began);
    this.outcome.replaceChildren(h("p", { class: "note", id: "took" }, `Answered in ${took}`), ...shownResponse(answer), raw(answer));
  }

  async stream(body, began) {
    const response = await this.request(body, { Accept: "text/event-stream" });
    const outputs = this.model.outputs;
    const isPlain = outputs.length === 1 && isText(outputs[0]);
    const summary = h("p", { class: "note", id: "took" });
    const list = isPlain ? h("pre", { class: "text", tabindex: "0", "aria-label": outputs[0].name }) : h("div", { class: "stream", tabindex: "0", "aria-label": "Responses" });
    let count = 0, first = 0, failure = null;
    const take = (data) => {
      const event = JSON.parse(data);
      if (event.error !== undefined) { failure = event.error; return; }
      count += 1;
      first = first || performance.now() - began;
      if (isPlain) list.append((event.outputs[0]?.data || []).join(""));
      else this.addResponse(list, event, count);
      const seconds = (performance.now() - began - first) / 1e3;
      const rate = seconds > 0.5 ? `, ${number((count - 1) / seconds)} per second` : "";
      setText(summary, `${count} ${count === 1 ? "response" : "responses"}, the first after ${milliseconds(first)}${rate}`);
    };
    this.outcome.replaceChildren(summary, list);
    const reader = response.body.getReader(), decoder = new TextDecoder(), events = new EventReader(take);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      events.feed(decoder.decode(value, { stream: true }));
    }
    if (failure !== null) this.line(failure, "problem");
    else if (!count) setText(summary, `No response, after ${milliseconds(performance.now() - began)}`);
    else this.line("Complete.");
  }

  addResponse(list, event, count) {
    const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 30;
    list.append(h("div", {}, shownResponse(event, count)));
    if (list.children.length > MAX_SHOWN) list.firstChild.remove();
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  }

  // ---- Answer

  answer() {
    this.outcome = h("div", { id: "outcome", "aria-live": "polite" }, h("p", { class: "empty" }, "The answer appears here."));
    return h("section", { class: "card" }, h("h2", {}, "Answer"), this.outcome);
  }

  line(text, kind = "note") { this.outcome.append(h("p", { class: kind }, text)); }

  fail(text) { this.outcome.replaceChildren(h("p", { class: "problem", role: "alert" }, text)); }

  refused(error) {
    this.fail(error.message);
    this.outcome.append(h("button", { type: "button", onclick: () => this.app.askToken() }, "Give the token"));
  }

  // ---- Facts

  tensors() {
    const rows = (specs, kind) => specs.map((spec) => h("tr", {}, h("td", {}, kind), h("td", {}, h("code", {}, spec.name)), h("td", {}, spec.datatype), h("td", {}, shapeText(spec.shape), spec.optional ? " optional" : "")));
    return h("section", { class: "card" }, h("h2", {}, "Tensors"), h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, ["", "Name", "Type", "Shape"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, rows(this.model.inputs, "in"), rows(this.model.outputs, "out")))));
  }

  examples() {
    const { addresses } = this.app.server;
    const ports = {
      http: addresses.http?.port, grpc: addresses.grpc?.port,
      web: addresses.http?.scheme || "http", rpc: addresses.grpc?.scheme || "grpc",
    };
    return h("section", { class: "card" }, h("h2", {}, "From a program"),
      examples(this.model, location.hostname, ports).map(([name, text]) => [h("h3", {}, name), codeBlock(text, `Example for ${name}`)]));
  }

  document(title, suffix) {
    const details = h("details", { class: "card" }, h("summary", {}, h("h2", {}, title)));
    details.addEventListener("toggle", async () => {
      if (!details.open) return;
      let content;
      try {
        content = codeBlock(JSON.stringify(await getJson(path(this.model) + suffix), null, 2), title);
      } catch (error) {
        content = h("p", { class: "problem" }, error.message);
      }
      while (details.children.length > 1) details.lastChild.remove();
      details.append(content);
    });
    return details;
  }
}

function shownResponse(response, count) {
  const outputs = (response.outputs || []).map((output) => {
    const text = tensorText(output), number = count ? h("span", { class: "note" }, `${count} `) : null;
    if (count && text.length < 60 && !text.includes("\n")) { // short ones of a stream have a line each
      return h("div", { class: "short" }, number, h("b", {}, output.name), h("code", {}, text));
    }
    return h("div", { class: "output" },
      h("div", {}, number, h("b", {}, output.name), " ", h("code", {}, `${output.datatype} ${shapeText(output.shape)}`)),
      h("pre", { tabindex: "0", class: output.datatype === "BYTES" ? "text" : "", "aria-label": `Output ${output.name}` }, text));
  });
  return outputs.length ? outputs : [h("p", { class: "note" }, "It has no outputs.")];
}

function raw(answer) {
  const details = h("details", {}, h("summary", {}, "As JSON"));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(codeBlock(JSON.stringify(answer, null, 1).slice(0, 200000), "The answer as JSON"));
  });
  return details;
}
