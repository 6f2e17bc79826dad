// SPDX-License-Identifier: Apache-2.0
// Puts the page together: asks the server again and again, and shows the view that the address names.

import { h, byId, setText } from "./dom.js";
import { ClusterView } from "./cluster.js";
import { ask, credentials, getJson, keyOf, Refused, Series } from "./data.js";
import { FailuresView } from "./failures.js";
import { ModelView } from "./model.js";
import { LogView } from "./log.js";
import { ApiView, ModelsView, ServerView } from "./views.js";

const TOKEN = "triton-access-token";
const INTERVAL_MS = 2000, MODELS_EVERY = 3;

// A person may write anything into the address.
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

class App {
  constructor() {
    this.series = new Series();
    this.server = { addresses: {}, other_headers: [] };
    this.models = [];
    this.cluster = null;
    this.modelsText = "";
    this.problem = "";
    this.view = null;
    this.last = 0;
    this.rounds = 0;
    this.started = 0;
  }

  async start() {
    this.takeToken();
    this.listen();
    await this.round();
    setInterval(() => this.round(), INTERVAL_MS);
  }

  // A link may bring the token behind the #, which browsers do not send anywhere.
  takeToken() {
    const found = location.hash.match(/^#token=([^&]+)(?:&?(.*))?$/);
    if (!found) return;
    credentials.write({ ...credentials.read(), [TOKEN]: decoded(found[1]) });
    history.replaceState(null, "", `${location.pathname}#${found[2] || "/"}`);
  }

  // ---- Asking

  async round(force = false) {
    if (this.isAsking || (document.hidden && !force && this.view)) return;
    this.isAsking = true;
    try {
      const isNew = !this.started;
      const answer = await getJson(`/samples?after=${this.last}`);
      if (answer.started !== this.started) await this.begin(answer);
      this.last = answer.last;
      this.series.add(answer);
      this.markErrors();
      await this.readCluster();
      if (force || isNew || this.rounds++ % MODELS_EVERY === 0) await this.readModels();
      this.status("live", "Live");
    } catch (error) {
      if (error instanceof TypeError) this.status("lost", "No answer, trying again");
      else this.status("lost", error.message);
    } finally {
      this.isAsking = false;
    }
    if (this.view) this.view.update();
    else if (this.started) this.route();
  }

  // Another server answers than before, or the first one.
  async begin(answer) {
    this.series.clear();
    this.started = answer.started;
    await this.readServer();
    this.rounds = 0;
    if (this.view) { this.modelsText = ""; }
  }

  async readServer() {
    this.server = await getJson("/server");
    setText(byId("server-name"), this.server.id === "triton" ? "pytriton" : this.server.id);
    const button = byId("token");
    setText(button, this.server.is_allowed ? "Token accepted" : "Read-only");
    button.dataset.state = this.server.is_allowed ? "on" : "off";
  }

  // Most servers have none, and are not asked.
  async readCluster() {
    this.cluster = this.series.hasCluster ? (await getJson("/cluster")).cluster : null;
    document.querySelector('[data-view="cluster"]').hidden = !this.cluster;
  }

  async readModels() {
    let models = [];
    this.problem = "";
    try {
      ({ models } = await getJson("/models"));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.problem = error.message;
    }
    const text = JSON.stringify([models, this.problem]);
    if (text === this.modelsText) return;
    this.modelsText = text;
    this.models = models;
    if (this.view instanceof ModelView) {
      const { model } = this.view, now = models.find((each) => keyOf(each) === keyOf(model));
      if (JSON.stringify(now) !== JSON.stringify(model)) this.route();
    } else if (this.view && this.view.modelsChanged) this.view.modelsChanged();
  }

  // Errors of the last minute are to be seen whatever a person looks at.
  markErrors() {
    const points = this.series.of(""), since = points.length ? points[points.length - 1].time - 60 : 0;
    const isBad = points.some((point) => point.time >= since && point.errors > 0);
    document.querySelector('[data-view="errors"]').classList.toggle("is-bad", isBad);
  }

  status(state, text) {
    const element = byId("status");
    element.dataset.state = state;
    setText(element, text);
    document.body.classList.toggle("is-lost", state === "lost");
  }

  // ---- Views

  route() {
    const [name = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
    if (this.view && this.view.stop) this.view.stop();
    this.view = this.make(name, rest);
    const shown = ["errors", "log", "server", "api", "cluster"].includes(name) ? name : "models";
    for (const link of document.querySelectorAll("[data-view]")) {
      if (link.dataset.view === shown) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    byId("content").replaceChildren(this.view.element);
    const title = this.view instanceof ModelView ? this.view.model.name : shown;
    document.title = `${title} · ${byId("server-name").textContent}`;
    this.view.update();
  }

  make(name, [model, version, namespace]) {
    if (name === "log") return new LogView(this, model);
    if (name === "errors") return new FailuresView(this);
    if (name === "server") return new ServerView(this);
    if (name === "api") return new ApiView(this);
    if (name === "cluster") return new ClusterView(this);
    if (name === "models" && model) {
      const same = this.models.filter((each) => each.name === model && (each.namespace || "") === (namespace || ""));
      const found = same.find((each) => (each.version || "-") === version) || same[0];
      if (found) return new ModelView(this, found);
      const missing = h("section", { class: "card" }, h("p", { class: "empty" }, `The server has no model “${model}” now. `, h("a", { href: "#/" }, "All models")));
      return { element: missing, update() {}, modelsChanged: () => this.route() };
    }
    return new ModelsView(this);
  }

  // ---- Doing

  async control(name, action) {
    if (action === "unload" && !confirm(`Unload ${name}? It gets no requests any more.`)) return;
    this.notify(action === "load" ? `Loading ${name} …` : `Unloading ${name} …`);
    try {
      await ask(`/v2/repository/models/${encodeURIComponent(name)}/${action}`, { method: "POST", body: "{}" });
      this.notify(action === "load" ? `${name} is loaded.` : `${name} is unloaded.`);
    } catch (error) {
      this.notify(error.message, true);
      if (error instanceof Refused) this.askToken();
    }
    await this.round(true);
  }

  notify(text, isProblem = false) {
    let place = byId("notice");
    if (!place) document.body.append(place = h("div", { id: "notice", role: "alert" }));
    place.className = isProblem ? "is-problem" : "";
    setText(place, text);
    clearTimeout(this.noticeTimer);
    this.noticeTimer = setTimeout(() => place.remove(), isProblem ? 12000 : 4000);
  }

  // What the user who runs the server types to get a link with the token.
  tokenCommand() {
    const { port } = this.server.addresses.http || this.server.addresses.grpc || { port: 8000 };
    return `pytriton page${port === 8000 ? "" : ` -u localhost:${port}`}`;
  }

  askToken() {
    const dialog = byId("token-dialog"), others = byId("token-others"), now = credentials.read();
    setText(byId("token-text"), "With the server's token you can send requests, load models and read the log. It is kept in this tab only.");
    setText(byId("token-command"), this.tokenCommand());
    byId("token-value").value = now[TOKEN] || "";
    others.replaceChildren(...this.server.other_headers.map((name) => {
      const input = h("input", { type: "password", autocomplete: "off", "data-header": name });
      input.value = now[name] || "";
      return h("label", {}, `Header ${name}, for restricted APIs `, input);
    }));
    byId("token-problem").hidden = true;
    if (!dialog.open) dialog.showModal();
  }

  async useToken(headers) {
    credentials.write(headers);
    await this.readServer();
    if (headers[TOKEN] && !this.server.is_allowed) return "The server does not accept this token.";
    await this.round(true);
    this.route();
    return "";
  }

  // ---- Events

  listen() {
    addEventListener("hashchange", () => { this.takeToken(); this.route(); byId("content").focus({ preventScroll: true }); });
    addEventListener("resize", () => this.view && this.view.update());
    document.addEventListener("visibilitychange", () => this.round());
    addEventListener("keydown", (event) => this.key(event));
    byId("theme").addEventListener("click", () => this.toggleTheme());
    byId("help").addEventListener("click", () => byId("help-dialog").showModal());
    byId("token").addEventListener("click", () => this.askToken());
    byId("token-dialog").querySelector("form").addEventListener("submit", async (event) => {
      const choice = event.submitter ? event.submitter.value : "use";
      if (choice === "cancel") return;
      event.preventDefault();
      const headers = {};
      if (choice === "use") {
        for (const input of byId("token-others").querySelectorAll("input")) if (input.value) headers[input.dataset.header] = input.value;
        if (byId("token-value").value) headers[TOKEN] = byId("token-value").value;
      }
      let problem;
      try { problem = await this.useToken(headers); } catch (error) { problem = error.message; }
      setText(byId("token-problem"), problem);
      byId("token-problem").hidden = !problem;
      if (!problem) byId("token-dialog").close();
    });
  }

  key(event) {
    const isTyping = event.target.closest("input, textarea, select, dialog[open]");
    if (event.key === "Escape" && event.target.id === "filter") event.target.blur();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const go = { m: "#/", e: "#/errors", l: "#/log", s: "#/server", a: "#/api", c: this.cluster && "#/cluster" }[event.key];
    if (go) location.hash = go;
    else if (event.key === "/" && byId("filter")) { event.preventDefault(); byId("filter").focus(); }
    else if (event.key === "?") byId("help-dialog").showModal();
    else if (event.key === "t") { event.preventDefault(); this.askToken(); }
    else if (event.key === "d") this.toggleTheme();
  }

  toggleTheme() {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* it lasts until the page is left */ }
  }
}

new App().start();
