// SPDX-License-Identifier: Apache-2.0
// The landing page: each model with its description, a form that sends requests, and examples.

import { h, byId, setText, codeBlock } from "./dom.js";
import { milliseconds } from "./data.js";
import { EventReader } from "./tensors.js";
import { exampleBody, generateExamples, plainExample, readPlain, takesJson } from "./examples.js";

const MAX_SHOWN = 500; // events of a stream
const RESTRICTED = /expecting header '([^']+)'/;
const secrets = new Map(); // values of headers that restricted APIs need; they are kept nowhere else

class Refused extends Error {
  constructor(message, header) { super(message); this.header = header; }
}

async function ask(path, options = {}) {
  const headers = { Accept: "application/json", ...Object.fromEntries(secrets), ...options.headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try { message = JSON.parse(text).error ?? text; } catch { /* no JSON: shown as it is */ }
  const restricted = response.status === 403 && RESTRICTED.exec(message);
  if (restricted) throw new Refused(message, restricted[1]);
  throw new Error(message || `The server answered ${response.status}`);
}

// Asks for the value of a header, then tries again what was refused.
function secretForm(error, retry) {
  const value = h("input", { type: "password", autocomplete: "off", spellcheck: "false", "aria-label": `Value of the header ${error.header}` });
  return h("form", { class: "secret", onsubmit: (event) => { event.preventDefault(); secrets.set(error.header, value.value); retry(); } },
    h("p", { class: "problem", role: "alert" }, error.message),
    h("label", {}, `Value of the header ${error.header}`), value,
    h("div", { class: "buttons" }, h("button", { class: "primary", type: "submit" }, "Use it")));
}

// ---- Models

class ModelCard {
  constructor(model) {
    this.model = model;
    this.answer = h("div", { class: "answer", "aria-live": "polite" });
    this.examples = h("div", {});
    this.chosen = "curl";
    this.sending = null;
    const facts = [];
    if (model.decoupled) facts.push("streams its answers");
    if (model.is_sequence) facts.push("keeps sequences");
    if (model.max_batch_size) facts.push(`batches of up to ${model.max_batch_size}`);
    if (model.openai) facts.push("answers OpenAI's clients, too");
    if (model.versions.length > 1) facts.push(`versions ${model.versions.join(", ")}`);
    this.element = h("section", { class: "card model", id: encodeURIComponent(model.name) },
      h("h2", {}, model.name), model.description ? h("p", {}, model.description) : null,
      facts.length ? h("p", { class: "facts" }, facts.join(" · ")) : null,
      takesJson(model) ? this.form() : h("p", { class: "note" }, "It takes 16-bit floats, which JSON has not: use a client of pytriton."),
      this.answer, takesJson(model) ? this.examples : null, this.outputs());
    if (takesJson(model)) this.showExamples();
  }

  form() {
    this.fields = this.model.inputs.map((spec) => this.field(spec));
    this.send = h("button", { class: "primary", type: "submit" }, "Send");
    this.stop = h("button", { type: "button", hidden: true, onclick: () => this.sending?.abort() }, "Stop");
    return h("form", { onsubmit: (event) => { event.preventDefault(); this.submit(); }, oninput: () => this.showExamples(),
      onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.submit(); } } },
      this.fields.map((field) => field.element), h("div", { class: "buttons" }, this.send, this.stop));
  }

  field(spec) {
    const id = `${encodeURIComponent(this.model.name)}.${spec.name}`, example = plainExample(spec, this.model);
    const text = typeof example === "string" ? example : JSON.stringify(example);
    const isLong = text.length > 60 || spec.dims.some((size) => size < 0 || size > 4);
    const given = h(isLong ? "textarea" : "input", { id, ...(isLong ? { rows: 2 } : { type: "text" }), spellcheck: "false", autocomplete: "off" });
    // An input that may be left out is left out, until something is typed.
    if (spec.optional) given.placeholder = spec.name in this.model.examples ? `default: ${text}` : "may be left out";
    else given.value = text;
    const kind = spec.words + (this.model.max_batch_size ? " for each row" : "") + (spec.optional ? ", optional" : "");
    const element = h("div", { class: "field" }, h("label", { for: id }, spec.name, " ", h("code", {}, kind)),
      spec.description ? h("span", { class: "note" }, spec.description) : null, given);
    return { spec, given, element };
  }

  body() {
    const body = {};
    for (const { spec, given } of this.fields) {
      if (spec.optional && !given.value) continue;
      body[spec.name] = readPlain(given.value, spec);
    }
    return body;
  }

  outputs() {
    const one = this.model.outputs.length === 1 && this.model.result;
    return h("details", {}, h("summary", {}, "What it answers"), h("dl", { class: "facts-list" },
      this.model.outputs.flatMap((spec) => [h("dt", {}, spec.name), h("dd", {}, one ? `${spec.words}: ${one}` : spec.words)])));
  }

  // ---- Examples

  showExamples() {
    let body;
    try { body = this.body(); } catch { body = exampleBody(this.model); } // while something is typed
    const headers = Object.fromEntries([...secrets.keys()].map((name) => [name, "…"]));
    const origin = location.origin + location.pathname.replace(/\/$/, "");
    const all = generateExamples(this.model, origin, body, headers);
    const buttons = all.map(([name]) => h("button", { type: "button", class: "quiet", role: "tab", "aria-selected": String(name === this.chosen),
      onclick: () => { this.chosen = name; this.showExamples(); } }, name));
    const [, text] = all.find(([name]) => name === this.chosen);
    this.examples.replaceChildren(h("div", { class: "choice", role: "tablist", "aria-label": "Language" }, buttons), codeBlock(text, `Example for ${this.chosen}`));
  }

  // ---- Requests

  async submit() {
    if (this.sending) return;
    let body;
    try { body = this.body(); } catch (error) { this.fail(error); return; }
    this.sending = new AbortController();
    this.send.disabled = true;
    this.stop.hidden = false;
    this.answer.replaceChildren(h("p", { class: "note" }, "Waiting …"));
    try {
      await this.request(body);
    } catch (error) {
      if (error.name === "AbortError") this.answer.append(h("p", { class: "note" }, "Stopped."));
      else this.fail(error);
    } finally {
      this.sending = null;
      this.send.disabled = false;
      this.stop.hidden = true;
    }
  }

  async request(body) {
    const action = this.model.decoupled ? "generate_stream" : "generate", began = performance.now();
    const response = await ask(`v2/models/${encodeURIComponent(this.model.name)}/${action}`, {
      method: "POST", body: JSON.stringify(body), signal: this.sending.signal,
      headers: { "Content-Type": "application/json", Accept: this.model.decoupled ? "text/event-stream" : "application/json" },
    });
    if (this.model.decoupled) { await this.showStream(response); return; }
    const answer = await response.json();
    const duration = h("p", { class: "note" }, `Answered in ${milliseconds(performance.now() - began)}`);
    this.answer.replaceChildren(...this.shown(answer), duration);
  }

  shown(answer) {
    return this.model.outputs.filter((spec) => spec.name in answer).map((spec) => h("div", { class: "output" },
      h("b", {}, spec.name), h("pre", { tabindex: "0", "aria-label": `Output ${spec.name}` }, valueText(answer[spec.name]))));
  }

  async showStream(response) {
    const texts = this.model.outputs.length === 1 && this.model.outputs[0].datatype === "BYTES";
    const list = h(texts ? "pre" : "div", { class: texts ? "text" : "stream", tabindex: "0", "aria-label": "Answers" });
    const summary = h("p", { class: "note" }, "Waiting for the first answer …");
    this.answer.replaceChildren(summary, list);
    let count = 0, failure = null;
    const events = new EventReader((data) => {
      const event = JSON.parse(data);
      if (event.error !== undefined) { failure = event.error; return; }
      count += 1;
      if (texts) list.append(valueText(event[this.model.outputs[0].name] ?? ""));
      else list.append(h("div", {}, this.model.outputs.map((spec) => `${spec.name}: ${valueText(event[spec.name])}`).join("  ")));
      if (list.childNodes.length > MAX_SHOWN) list.firstChild.remove();
      setText(summary, `${count} ${count === 1 ? "answer" : "answers"}`);
    });
    const reader = response.body.getReader(), decoder = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      events.feed(decoder.decode(value, { stream: true }));
    }
    if (failure !== null) this.answer.append(h("p", { class: "problem", role: "alert" }, failure));
    else setText(summary, `${count} ${count === 1 ? "answer" : "answers"}, complete`);
  }

  fail(error) {
    if (error instanceof Refused) this.answer.replaceChildren(secretForm(error, () => { this.showExamples(); this.submit(); }));
    else this.answer.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
  }
}

const valueText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

// ---- The page

function show({ id, version, addresses, models }) {
  const name = id === "triton" ? "pytriton" : id; // as on the page of operators
  document.title = `models · ${name}`;
  setText(byId("server-name"), name);
  const links = Object.entries({ page: "Dashboard", openapi: "OpenAPI" }).filter(([name]) => addresses[name]);
  byId("links").replaceChildren(...links.map(([name, label]) => h("a", { href: name === "openapi" ? "openapi.json" : addresses[name] }, label)));
  const where = [["HTTP", addresses.http], ["gRPC", addresses.grpc], ["metrics", addresses.metrics]].filter(([, url]) => url).map(([name, url]) => `${name} at ${url}`);
  const intro = h("p", { class: "intro" }, `pytriton ${version}: ${where.join(", ")}.`);
  const title = models.length === 1 ? "One model is ready" : models.length ? `${models.length} models are ready` : "No model is ready";
  const empty = models.length ? [] : [h("section", { class: "card" }, h("p", { class: "empty" }, "Reload this page when a model is loaded."))];
  byId("content").replaceChildren(h("h1", {}, title), intro, ...empty, ...models.map((model) => new ModelCard(model).element));
  goTo();
}

function goTo() {
  const target = location.hash.length > 1 && byId(location.hash.slice(1));
  if (target) target.scrollIntoView();
}

async function load() {
  try {
    show(await (await ask("landing/models")).json());
  } catch (error) {
    const shown = error instanceof Refused ? secretForm(error, load) : h("p", { class: "problem", role: "alert" }, error.message);
    byId("content").replaceChildren(h("section", { class: "card" }, shown));
  }
}

byId("theme").addEventListener("click", () => {
  const root = document.documentElement, isDark = getComputedStyle(root).colorScheme.startsWith("dark") || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it is for this visit only */ }
});
addEventListener("hashchange", goTo);
load();
