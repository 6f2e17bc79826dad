// SPDX-License-Identifier: Apache-2.0
// Reads what a person types for a tensor, and writes tensors for people. Pure.

import { exampleBody, generateExamples } from "./examples.js";

const MAX_FILLED = 4e6;
const INTEGER = /^U?INT/;

export const shapeText = (shape) => `[${shape.join(", ")}]`;
export const product = (shape) => shape.reduce((sizes, size) => sizes * size, 1);
export const isText = (spec) => spec.datatype === "BYTES";
export const isJson = (spec) => spec.datatype !== "FP16" && spec.datatype !== "BF16";

// Something to begin with: small numbers, or a word for a large tensor.
export function exampleOf(spec) {
  const shape = spec.shape.map((size) => (size < 0 ? 1 : size));
  const count = product(shape);
  if (isText(spec)) return count === 1 ? "Hello" : JSON.stringify(Array(Math.min(count, 64)).fill("Hello"));
  if (count > 16) return "random";
  const values = Array.from({ length: count }, (_, at) => (spec.datatype === "BOOL" ? true : at + 1));
  return count === 1 ? String(values[0]) : JSON.stringify(values);
}

// Returns {shape, data} for a text; throws an Error that says what was expected.
export function readTensor(text, spec) {
  const words = text.trim().match(/^(zeros|ones|random)(?:\s*[([]?\s*([\d\s,x]+)[)\]]?)?$/i);
  if (words && !isText(spec)) return filled(words[1].toLowerCase(), words[2], spec);
  const value = readValue(text, spec);
  if (!Array.isArray(value)) return fitted([checked(value, spec)], null, spec);
  const shape = shapeOf(value, spec.name);
  const data = value.flat(Infinity).map((each) => checked(each, spec));
  return fitted(data, shape, spec);
}

function readValue(text, spec) {
  const trimmed = text.trim();
  if (isText(spec)) {
    if (!trimmed.startsWith("[")) return text;
    try { return JSON.parse(trimmed); } catch { return text; } // a text that begins with a bracket
  }
  if (!trimmed) throw new Error(`${spec.name}: a value is missing`);
  try { return JSON.parse(trimmed); } catch { /* perhaps a plain list of numbers */ }
  const parts = trimmed.split(/[\s,;]+/).filter(Boolean);
  const values = parts.map((part) => ({ true: true, false: false })[part.toLowerCase()] ?? Number(part));
  if (values.some((value) => Number.isNaN(value))) {
    throw new Error(`${spec.name}: expected ${kindOf(spec)}, as JSON or with spaces between, got ${quoted(trimmed)}`);
  }
  return values.length === 1 ? values[0] : values;
}

const quoted = (text) => `“${text.length > 40 ? `${text.slice(0, 40)}…` : text}”`;

function kindOf(spec) {
  if (isText(spec)) return "texts";
  if (spec.datatype === "BOOL") return "true or false";
  return INTEGER.test(spec.datatype) ? "whole numbers" : "numbers";
}

function checked(value, spec) {
  const fits = isText(spec) ? typeof value === "string"
    : spec.datatype === "BOOL" ? typeof value === "boolean"
      : typeof value === "number" && (!INTEGER.test(spec.datatype) || Number.isInteger(value));
  if (!fits) throw new Error(`${spec.name}: expected ${kindOf(spec)}, got ${quoted(JSON.stringify(value) ?? "nothing")}`);
  return value;
}

function shapeOf(value, name) {
  if (!Array.isArray(value)) return [];
  const inner = value.map((each) => shapeOf(each, name));
  if (inner.some((each) => String(each) !== String(inner[0]))) {
    throw new Error(`${name}: the lists inside have different lengths`);
  }
  return [value.length, ...(inner[0] || [])];
}

const agrees = (shape, spec) =>
  shape.length === spec.shape.length && spec.shape.every((size, at) => size < 0 || size === shape[at]);

// Chooses the shape of the request: that of nested lists, or what a flat list can mean.
function fitted(data, given, spec) {
  if (given && agrees(given, spec)) return { shape: given, data };
  if (given && spec.shape[0] < 0 && agrees([1, ...given], spec)) return { shape: [1, ...given], data };
  if (!given || given.length === 1) {
    const last = spec.shape.lastIndexOf(-1);
    const fixed = product(spec.shape.filter((size) => size > 0));
    const rest = data.length / fixed;
    const shape = spec.shape.map((size, at) => (size >= 0 ? size : at === last ? rest : 1));
    if (product(shape) === data.length && shape.every(Number.isInteger)) return { shape, data };
  }
  const came = given ? `the shape ${shapeText(given)}` : "one value";
  throw new Error(`${spec.name}: expected the shape ${shapeText(spec.shape)} (-1 is any size), got ${came}`);
}

function filled(word, sizes, spec) {
  const shape = sizes ? sizes.split(/[\s,x]+/).filter(Boolean).map(Number) : spec.shape.map((size) => (size < 0 ? 1 : size));
  if (!agrees(shape, spec)) {
    throw new Error(`${spec.name}: expected the shape ${shapeText(spec.shape)} (-1 is any size), got ${shapeText(shape)}`);
  }
  if (product(shape) > MAX_FILLED) throw new Error(`${spec.name}: ${shapeText(shape)} is too large for a form`);
  const value = {
    zeros: () => (spec.datatype === "BOOL" ? false : 0),
    ones: () => (spec.datatype === "BOOL" ? true : 1),
    random: () => {
      if (spec.datatype === "BOOL") return Math.random() < 0.5;
      return INTEGER.test(spec.datatype) ? Math.floor(Math.random() * 100) : Number(Math.random().toFixed(4));
    },
  }[word];
  return { shape, data: Array.from({ length: product(shape) }, value) };
}

// A tensor as lines: nested brackets by its shape, the innermost lists on one line each.
export function tensorText(output, most = 400) {
  const { shape, datatype } = output;
  const data = (output.data || []).flat(Infinity);
  if (datatype === "BYTES" && data.length === 1) return String(data[0]);
  const shown = data.slice(0, most);
  const text = (value) => (typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(7))) : JSON.stringify(value));
  let at = 0;
  const write = (depth, indent) => {
    if (depth >= shape.length) return text(shown[at++]);
    const items = [];
    for (let index = 0; index < shape[depth] && at < shown.length; index++) items.push(write(depth + 1, `${indent} `));
    return depth === shape.length - 1 ? `[${items.join(", ")}]` : `[${items.join(`,\n${indent} `)}]`;
  };
  const body = data.length ? write(0, "") : "[]";
  return data.length > most ? `${body}\n… and ${data.length - most} more values` : body;
}

// The body of an infer request.
export function requestBody(model, texts, parameters) {
  const inputs = [];
  for (const spec of model.inputs) {
    const text = texts[spec.name];
    if (text === undefined) continue;
    inputs.push({ name: spec.name, datatype: spec.datatype, ...readTensor(text, spec) });
  }
  const body = { inputs };
  if (parameters.trim()) {
    let read;
    try { read = JSON.parse(parameters); } catch (error) { throw new Error(`Parameters: expected a JSON object (${error.message})`); }
    if (typeof read !== "object" || read === null || Array.isArray(read)) throw new Error("Parameters: expected a JSON object");
    const { id, ...rest } = read;
    if (id !== undefined) body.id = String(id);
    if (Object.keys(rest).length) body.parameters = rest;
  }
  return body;
}

// The events of a stream as they come; `onEvent` gets the data of each.
export class EventReader {
  constructor(onEvent) { this.rest = ""; this.onEvent = onEvent; }

  feed(text) {
    const parts = (this.rest + text).split("\n\n");
    this.rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
      if (data.length) this.onEvent(data.join("\n"));
    }
  }
}

// Requests that a person can copy.
export function examples(model, host, ports) {
  const { web } = ports;
  const at = `${web}://${host}:${ports.http}/v2/models/${encodeURIComponent(model.name)}`;
  const small = model.inputs.filter((spec) => !spec.optional);
  const isSmall = small.every((spec) => isJson(spec) && exampleOf(spec) !== "random");
  const found = [];
  if (ports.http && isSmall) {
    const [plainCurl] = generateExamples(model, `${web}://${host}:${ports.http}`, exampleBody(model));
    found.push(plainCurl);
    const body = { inputs: small.map((spec) => ({ name: spec.name, datatype: spec.datatype, ...readTensor(exampleOf(spec), spec) })) };
    const data = JSON.stringify(body).replaceAll("'", "'\\''");
    const accept = model.decoupled ? " -N -H 'Accept: text/event-stream'" : "";
    found.push(["curl, with tensors", `curl${accept} '${at.replaceAll("'", "%27")}/infer' \\\n  -d '${data}'`]);
  }
  if (ports.http || ports.grpc) found.push(["Python", pythonExample(model, small, host, ports)]);
  return found;
}

const NUMPY = { BOOL: "np.bool_", FP16: "np.float16", FP32: "np.float32", FP64: "np.float64", BYTES: "object" };

function pythonExample(model, specs, host, ports) {
  const { web, rpc } = ports;
  const client = model.decoupled ? "DecoupledModelClient" : "ModelClient";
  const url = model.decoupled || !ports.http ? `${rpc}://${host}:${ports.grpc}` : `${web}://${host}:${ports.http}`;
  const isBatch = model.max_batch_size > 0;
  const names = specs.map((spec, at) => (/^[A-Za-z_]\w*$/.test(spec.name) ? spec.name : `input_${at}`));
  const lines = specs.map((spec, at) => {
    const type = NUMPY[spec.datatype] || `np.${spec.datatype.toLowerCase()}`;
    const sizes = spec.shape.map((size) => (size < 0 ? 1 : size));
    const shape = `(${sizes.join(", ")}${sizes.length === 1 ? "," : ""})`;
    const value = isText(spec) ? `np.full(${shape}, b"Hello", object)` : `np.ones(${shape}, ${type})`;
    return `${names[at]} = ${value}`;
  });
  const isPlain = specs.every((spec, at) => spec.name === names[at]);
  const given = isPlain ? names.map((name) => `${name}=${name}`).join(", ")
    : `**{${specs.map((spec, at) => `${JSON.stringify(spec.name)}: ${names[at]}`).join(", ")}}`;
  const call = `client.infer_${isBatch ? "batch" : "sample"}(${given})`;
  const use = model.decoupled ? `    for answer in ${call}:\n        print(answer)` : `    print(${call})`;
  return ["import numpy as np", `from pytriton.client import ${client}`, "", ...lines,
    `with ${client}(${JSON.stringify(url)}, ${JSON.stringify(model.name)}) as client:`, use].join("\n");
}
