// SPDX-License-Identifier: Apache-2.0
// The view of the log: the server filters its lines, and this shows what is new every two seconds.

import { h, setText } from "./dom.js";
import { getJson, Refused } from "./data.js";

const MAX_LINES = 2000, TYPING_MS = 250;
const LEVELS = [["VERBOSE", "All levels"], ["INFO", "Info and above"], ["WARNING", "Warnings and errors"], ["ERROR", "Errors"]];

// How somebody without the token gets it; where the server wants another header besides, the dialog asks for that.
export function tokenNeeded(app, what) {
  const { server } = app;
  const ways = [
    h("li", {}, h("code", {}, app.tokenCommand()), " prints a link with it for the user who runs the server, on the same machine."),
    h("li", {}, h("code", {}, "pytriton serve"), " prints this link when it starts."),
    h("li", {}, "In your own program, ", h("code", {}, "triton.get_access_token()"), " returns it."),
  ];
  const text = server.is_allowed ? `${what} needs another value besides the token, which this server asks for.`
    : `${what} is for those who have the server's token.`;
  return h("section", { class: "card needs-token" }, h("p", {}, text), server.is_allowed ? null : h("ul", {}, ways),
    h("button", { type: "button", class: "primary", onclick: () => app.askToken() }, "Give the token"));
}

export class LogView {
  constructor(app, model = "") {
    this.app = app;
    this.asked = 0; // counts filters: an answer for an earlier one is not shown
    this.wanted = model;
    this.model = h("select", { id: "log-model", "aria-label": "Model", onchange: () => this.restart() });
    this.level = h("select", { id: "log-level", "aria-label": "Least level", onchange: () => this.restart() }, LEVELS.map(([value, text]) => h("option", { value }, text)));
    this.filter = h("input", { type: "search", id: "filter", placeholder: "Text or request id", "aria-label": "Text or request id",
      oninput: () => { clearTimeout(this.typing); this.typing = setTimeout(() => this.restart(), TYPING_MS); } });
    this.follow = h("input", { type: "checkbox", id: "follow" });
    this.follow.checked = true;
    this.list = h("div", { class: "log", role: "log", tabindex: "0", "aria-label": "Lines of the log" });
    this.list.addEventListener("scroll", () => {
      this.follow.checked = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 30;
    });
    this.follow.addEventListener("change", () => this.scroll());
    this.note = h("span", { class: "note", role: "status" });
    this.problem = h("div", {});
    this.card = h("section", { class: "card" }, h("div", { class: "row" }, h("h1", {}, "Log"), this.note, h("span", { class: "grow" }),
      h("label", { class: "inline", for: "follow" }, this.follow, "Follow"), this.model, this.level, this.filter), this.list);
    this.element = h("div", {}, this.card, this.problem);
    this.modelsChanged();
    this.restart(false);
  }

  stop() { clearTimeout(this.typing); this.asked += 1; }

  modelsChanged() {
    const chosen = this.model.value || this.wanted;
    const names = new Set(this.app.models.map((each) => each.name));
    if (chosen) names.add(chosen);
    this.model.replaceChildren(h("option", { value: "" }, "All models"), ...[...names].sort().map((name) => h("option", { value: name }, name)));
    this.model.value = chosen;
  }

  // Other lines are wanted, or another server answers: all of them are asked for again.
  restart(asks = true) {
    this.asked += 1;
    this.last = this.started = 0;
    this.list.replaceChildren();
    if (asks) this.update();
  }

  async update() {
    const asked = this.asked, after = this.last, query = new URLSearchParams({ after, level: this.level.value, model: this.model.value, text: this.filter.value.trim() });
    let answer;
    try {
      answer = await getJson(`/log?${query}`);
    } catch (error) {
      if (error instanceof Refused && asked === this.asked) { this.problem.replaceChildren(tokenNeeded(this.app, "The log")); this.card.hidden = true; }
      return;
    }
    if (asked !== this.asked || after !== this.last) return; // of an earlier filter, or asked twice
    this.problem.replaceChildren();
    this.card.hidden = false;
    if (this.started && answer.started !== this.started) { this.restart(); return; }
    this.started = answer.started;
    this.last = answer.last;
    this.append(answer.lines);
    this.tell();
  }

  append(lines) {
    const isFollowing = this.follow.checked;
    // What processes have printed comes a moment later than what they log.
    lines.sort((a, b) => a.time - b.time);
    this.list.append(...lines.map((line) => this.row(line)));
    while (this.list.children.length > MAX_LINES) this.list.firstChild.remove();
    if (isFollowing) { this.follow.checked = true; this.scroll(); }
  }

  row(line) {
    const place = h("span", { class: "place", title: `process ${line.process}` }, line.place);
    const model = line.model ? h("button", { type: "button", class: "tag", title: "Lines of this model only", onclick: () => this.only(this.model, line.model) }, line.model) : null;
    const ids = line.request_ids.map((id) => h("button", { type: "button", class: "tag id", title: "Lines of this request only", onclick: () => this.only(this.filter, id) }, id));
    return h("div", { class: "log-line", "data-level": line.level },
      h("time", {}, new Date(line.time * 1e3).toLocaleTimeString([], { hour12: false })), h("b", { title: line.level.toLowerCase() }, line.level[0]), place,
      h("span", { class: "text" }, model, ids, line.text));
  }

  only(control, value) {
    if (control === this.model) { this.wanted = value; this.model.value = ""; this.modelsChanged(); } else control.value = value;
    this.restart();
  }

  tell() {
    const count = this.list.children.length, isFiltered = this.model.value || this.filter.value.trim() || this.level.value !== "VERBOSE";
    if (count) setText(this.note, `${count} line${count === 1 ? "" : "s"}${isFiltered ? " that fit" : ""}`);
    else setText(this.note, isFiltered ? "No line fits." : "No lines yet.");
  }

  scroll() { if (this.follow.checked) this.list.scrollTop = this.list.scrollHeight; }
}
