// SPDX-License-Identifier: Apache-2.0
// The view of a cluster: its nodes, and the instances on them.

import { h, setText } from "./dom.js";
import { keyOf, number } from "./data.js";

const MAX_ROWS = 500;
const keyOfRow = (row) => keyOf({ namespace: row.namespace, name: row.model, version: row.version });
const href = (row) => `#/models/${encodeURIComponent(row.model)}/${row.version}${row.namespace ? `/${encodeURIComponent(row.namespace)}` : ""}`;
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// Where an instance is, for people.
export function place(row) {
  if (row.node) return row.node;
  return row.state === "running" ? "the server’s machine" : "none yet";
}

export function amount(node, resource) {
  const total = node.total[resource];
  if (total === undefined) return "–";
  if (!Object.keys(node.available).length) return number(total);
  return `${number(total - (node.available[resource] || 0))} of ${number(total)} in use`;
}

const badge = (state) => h("span", { class: "badge", "data-state": state }, state);
const head = (names) => h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name))));

function instanceRow(row, withModel) {
  return h("tr", {}, withModel ? h("td", {}, h("a", { href: href(row) }, row.model), " ", h("small", {}, `v${row.version}`)) : null,
    h("td", {}, row.name ? h("code", {}, row.name) : "–"), h("td", {}, place(row)), h("td", {}, row.pid ? String(row.pid) : "–"), h("td", {}, badge(row.state)));
}

// A table that is drawn again only if its rows differ, so that a selection stays.
export class Instances {
  constructor(withModel) {
    this.withModel = withModel;
    this.tbody = h("tbody", {});
    this.more = h("p", { class: "note", hidden: true });
    this.text = "";
    this.element = h("div", {}, h("div", { class: "scroll" }, h("table", { class: "instances" },
      head([...(withModel ? ["Model"] : []), "Instance", "Node", "Process", "State"]), this.tbody)), this.more);
  }

  update(rows) {
    const text = JSON.stringify(rows);
    if (text === this.text) return;
    this.text = text;
    this.tbody.replaceChildren(...rows.slice(0, MAX_ROWS).map((row) => instanceRow(row, this.withModel)));
    this.more.hidden = rows.length <= MAX_ROWS;
    setText(this.more, `And ${rows.length - MAX_ROWS} more.`);
  }
}

export const instancesOf = (cluster, model) => (cluster?.instances || []).filter((row) => keyOfRow(row) === keyOf(model));

const age = (seconds) => (seconds < 120 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);

export class ClusterView {
  constructor(app) {
    this.app = app;
    this.facts = h("p", { class: "facts" });
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    this.nodes = h("div", { class: "scroll" });
    this.text = "";
    this.instances = new Instances(true);
    this.element = h("div", {}, h("div", { class: "model-head" }, h("h1", {}, "Cluster"), this.facts, this.problem),
      this.tables = h("div", { hidden: true }, h("section", { class: "card" }, h("h2", {}, "Nodes"), this.nodes),
        h("section", { class: "card" }, h("h2", {}, "Instances"), this.instances.element)));
  }

  update() {
    const { cluster } = this.app;
    this.tables.hidden = !cluster;
    if (!cluster) { setText(this.facts, "All instances run on the server’s own machine."); return; }
    const running = cluster.instances.filter((row) => row.state === "running").length;
    const parts = [cluster.address && `Ray at ${cluster.address}`, plural(cluster.nodes.length, "node"),
      `${running} of ${plural(cluster.instances.length, "instance")} running`, cluster.launcher_restarts && `launcher restarted ${plural(cluster.launcher_restarts, "time")}`];
    setText(this.facts, parts.filter(Boolean).join(" · "));
    this.problem.hidden = cluster.is_connected;
    const past = cluster.unreachable_s ? `The nodes were last seen ${age(cluster.unreachable_s)} ago. ` : "";
    setText(this.problem, cluster.is_connected ? "" : `${past}No instance can be started now: ${cluster.problem || "the launcher is not connected"}`);
    this.instances.update(cluster.instances);
    this.showNodes(cluster);
  }

  showNodes({ nodes, instances }) {
    const resources = [...new Set(nodes.flatMap((node) => Object.keys(node.total)))].sort();
    const models = (node) => {
      const counts = new Map();
      for (const row of instances) if (row.node === node.name) counts.set(row.model, (counts.get(row.model) || 0) + 1);
      return [...counts].map(([name, count]) => `${name} ${count}`).join(", ") || "–";
    };
    const rows = nodes.map((node) => [node.name, ...resources.map((name) => amount(node, name)), String(node.processes), models(node)]);
    const text = JSON.stringify([resources, rows]);
    if (text === this.text) return;
    this.text = text;
    const body = rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell))));
    this.nodes.replaceChildren(nodes.length ? h("table", { class: "nodes" }, head(["Node", ...resources, "Processes", "Models"]), h("tbody", {}, body))
      : h("p", { class: "empty" }, "No nodes are known."));
  }
}
