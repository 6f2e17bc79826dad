// SPDX-License-Identifier: Apache-2.0
// The last failures in groups: all of them as a view, and those of one model in its view.

import { h, setText, codeBlock } from "./dom.js";
import { ask, duration, getJson, number } from "./data.js";
import { shapeText } from "./tensors.js";

const MAX_TITLE = 160;
const REASONS = {
  BACKEND: "the model failed", REFUSED: "refused before the model saw it", REJECTED: "its time in the queue was over",
  CANCELED: "cancelled by its client", OTHER: "the server could not run it",
};

const ago = (time) => `${duration(Date.now() / 1e3 - time)} ago`;
const clock = (time) => new Date(time * 1e3).toLocaleString([], { hour12: false });
const identifierOf = (model) => (model.namespace ? `${model.namespace}::${model.name}` : model.name);

// The last line of a traceback has the class of the exception and what it says.
function titleOf({ kind, example }) {
  const said = example?.traceback ? example.traceback.trimEnd().split("\n").pop() : "";
  return said.startsWith(kind) ? said.slice(0, MAX_TITLE) : kind;
}

// One group: a line, which opens to an example. What is open stays as it is while numbers change.
class Failure {
  constructor(list, group) {
    this.list = list;
    this.count = h("span", { class: "count" });
    this.when = h("span", { class: "when note" });
    this.title = h("b", {});
    const where = list.model ? null : h("small", {}, group.model ? ` ${group.model}${group.version ? ` v${group.version}` : ""}` : " no model");
    this.summary = h("summary", {}, this.count,
      h("span", { class: "what" }, this.title, where, h("small", {}, ` · ${REASONS[group.reason] || group.reason}`),
        group.place ? h("span", { class: "place" }, group.place) : null), this.when);
    this.body = h("div", {});
    this.element = h("details", { class: "failure", "data-reason": group.reason }, this.summary, this.body);
    this.element.addEventListener("toggle", () => this.show());
    this.update(group);
  }

  update(group) {
    this.group = group;
    setText(this.count, number(group.count));
    setText(this.title, titleOf(group));
    setText(this.when, group.count > 1 ? `${ago(group.last)}, first ${ago(group.first)}` : ago(group.last));
    this.when.title = `first ${clock(group.first)}, last ${clock(group.last)}`;
    this.show();
  }

  show() {
    if (!this.element.open) return;
    const { example } = this.group;
    const text = JSON.stringify([example, this.group.awaits_inputs, this.group.has_inputs]);
    if (text === this.shown) return;
    this.shown = text;
    this.body.replaceChildren(...(example ? this.example(example) : [h("p", { class: "note" }, "Messages, places and tracebacks need the token. "),
      h("button", { type: "button", onclick: () => this.list.app.askToken() }, "Give the token")]));
  }

  example(example) {
    const inputs = example.inputs.map((each) => `${each.name} ${each.datatype}${shapeText(each.shape)}`);
    if (example.more_inputs) inputs.push(`and ${example.more_inputs} more`);
    const facts = [["At", clock(example.time)], ["Id", example.id || "none"]];
    if (!this.group.model) facts.push(["Model", example.model || "none"]);
    if (inputs.length) facts.push(["Inputs", inputs.join(", ")]);
    return [
      h("h3", {}, "One of the last requests"), h("p", { class: "problem message" }, example.message || "The request was cancelled."),
      h("dl", { class: "facts-list" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      example.traceback ? h("h3", {}, "Traceback") : null, example.traceback ? codeBlock(example.traceback, "Traceback") : null,
      this.inputs(inputs.length > 0),
    ].filter(Boolean);
  }

  // Contents may be secret: they are kept only if somebody asks, and only of one request.
  inputs(hasSome) {
    const { group } = this;
    if (!hasSome && !group.has_inputs && !group.awaits_inputs) return null;
    const place = h("div", {});
    const button = (text, keep) => h("button", { type: "button", onclick: () => this.keep(keep) }, text);
    if (group.has_inputs) {
      const load = h("button", { type: "button", onclick: () => this.showInputs(place) }, "Show the kept inputs");
      return h("div", {}, h("div", { class: "buttons" }, load, button("Forget them", false)), place);
    }
    return h("div", { class: "buttons" }, group.awaits_inputs
      ? [h("span", { class: "note" }, "The inputs of the next failure here will be kept."), button("Do not keep them", false)]
      : button("Keep the inputs of the next failure", true));
  }

  async keep(keep) {
    try {
      await ask("/failures/inputs", { method: "POST", body: JSON.stringify({ group: this.group.group, keep }) });
    } catch (error) {
      this.list.app.notify(error.message, true);
    }
    await this.list.update();
  }

  async showInputs(place) {
    try {
      const kept = await getJson(`/failures/inputs?group=${this.group.group}`);
      const cut = kept.inputs.filter((each) => each.is_cut).map((each) => each.name);
      const request = { id: kept.id || undefined, inputs: kept.inputs.map(({ name, datatype, shape, data }) => ({ name, datatype, shape, data })) };
      place.replaceChildren(h("p", { class: "note" }, `A request of ${clock(kept.time)}${cut.length ? `; cut: ${cut.join(", ")}` : ""}`), codeBlock(JSON.stringify(request, null, 1), "Inputs of the request"));
    } catch (error) {
      this.list.app.notify(error.message, true);
    }
  }
}

// The groups of all models, or of one; hidden in the view of a model that has none.
export class FailureList {
  constructor(app, model = null) {
    this.app = app;
    this.model = model;
    this.shown = new Map();
    this.rows = h("div", {});
    this.note = h("span", { class: "note", role: "status" });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.empty = h("p", { class: "empty", hidden: true }, "No request has failed since the server started.");
    this.element = h("section", { class: "card failures", hidden: Boolean(model) },
      h("div", { class: "row" }, model ? h("h2", {}, "Errors") : h("h1", {}, "Errors"), this.note), this.problem, this.rows, this.empty);
  }

  fits(group) {
    return !this.model || (group.model === identifierOf(this.model) && group.version === this.model.version);
  }

  async update() {
    let answer;
    try {
      answer = await getJson("/failures");
    } catch (error) {
      if (error instanceof TypeError) return; // no answer, which the status says
      this.problem.hidden = false;
      setText(this.problem, error.message);
      return;
    }
    this.problem.hidden = true;
    this.show(answer);
  }

  show(answer) {
    const groups = answer.groups.filter((group) => this.fits(group)), known = this.shown;
    // With another token there is more or less to show, so all is made anew.
    if (answer.has_details !== this.hasDetails) known.clear();
    this.hasDetails = answer.has_details;
    this.shown = new Map(groups.map((group) => [group.group, known.get(group.group) || new Failure(this, group)]));
    for (const group of groups) this.shown.get(group.group).update(group);
    const elements = [...this.shown.values()].map((each) => each.element);
    if (elements.some((element, at) => this.rows.children[at] !== element) || this.rows.children.length !== elements.length) this.rows.replaceChildren(...elements);
    const total = groups.reduce((sum, group) => sum + group.count, 0);
    setText(this.note, groups.length ? `${number(total)} ${total === 1 ? "request" : "requests"} in ${groups.length} ${groups.length === 1 ? "group" : "groups"}, the newest first` : "");
    this.element.hidden = Boolean(this.model) && !groups.length;
    this.empty.hidden = Boolean(this.model) || groups.length > 0;
  }
}

export class FailuresView {
  constructor(app) {
    this.list = new FailureList(app);
    this.element = h("div", {}, this.list.element);
  }

  update() { return this.list.update(); }
}
