// SPDX-License-Identifier: Apache-2.0
// Requests with plain values, as people send them to generate: for forms, and to be copied. Pure.

const INTEGER = /^U?INT/;
const MAX_ELEMENTS = 4096; // of an example

// JSON has no form of these: such models take binary tensors only.
export const takesJson = (model) => model.inputs.every((spec) => spec.datatype !== "FP16" && spec.datatype !== "BF16");

// The sizes of one value: without the rows of a batch.
const dimsOf = (spec, model) => spec.dims || (model.max_batch_size ? spec.shape.slice(1) : spec.shape);

// Something to begin with: the author's example, or a small value.
export function plainExample(spec, model) {
  if (model.examples && spec.name in model.examples) return model.examples[spec.name];
  const sizes = dimsOf(spec, model).map((size) => (size < 0 ? 3 : size));
  const count = Math.min(sizes.reduce((all, size) => all * size, 1), MAX_ELEMENTS);
  const value = (at) => (spec.datatype === "BYTES" ? "Hello" : spec.datatype === "BOOL" ? true : at + 1);
  return count === 1 && !dimsOf(spec, model).some((size) => size < 0) ? value(0) : Array.from({ length: count }, (_, at) => value(at));
}

export function exampleBody(model) {
  const needed = model.inputs.filter((spec) => !spec.optional);
  return Object.fromEntries((needed.length ? needed : model.inputs.slice(0, 1)).map((spec) => [spec.name, plainExample(spec, model)]));
}

// Reads what a person typed; throws an Error that says what was expected.
export function readPlain(text, spec) {
  const trimmed = text.trim();
  if (spec.datatype === "BYTES") {
    if (!trimmed.startsWith("[")) return text;
    try {
      const list = JSON.parse(trimmed);
      return list.flat(Infinity).every((each) => typeof each === "string") ? list : text; // a text may be JSON
    } catch { return text; } // a text that begins with a bracket
  }
  if (!trimmed) throw new Error(`${spec.name}: a value is missing`);
  try { return JSON.parse(trimmed); } catch { /* perhaps numbers with spaces between */ }
  const values = trimmed.split(/[\s,;]+/).filter(Boolean).map((part) => ({ true: true, false: false })[part.toLowerCase()] ?? Number(part));
  if (values.some((value) => Number.isNaN(value))) {
    const kind = spec.datatype === "BOOL" ? "true or false" : INTEGER.test(spec.datatype) ? "whole numbers" : "numbers";
    throw new Error(`${spec.name}: expected ${spec.words || kind}, got “${trimmed.slice(0, 40)}”`);
  }
  return values.length === 1 ? values[0] : values;
}

const pathOf = (model) => `/v2/models/${encodeURIComponent(model.name)}/generate${model.decoupled ? "_stream" : ""}`;
const inShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
// JSON's words for these are no Python.
const asPython = (value) => (value === true ? "True" : value === false ? "False" : value === null ? "None"
  : Array.isArray(value) ? `[${value.map(asPython).join(", ")}]`
    : typeof value === "object" ? `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${asPython(each)}`).join(", ")}}` : JSON.stringify(value));

// [name, text] of requests that can be copied; `origin` is the address of the HTTP port.
export function generateExamples(model, origin, body, headers = {}) {
  const url = origin + pathOf(model), names = Object.keys(headers);
  const curlHeaders = names.map((name) => ` \\\n  -H ${inShell(`${name}: ${headers[name]}`)}`).join("");
  const curl = `curl${model.decoupled ? " -N" : ""} ${inShell(url)}${curlHeaders} \\\n  -d ${inShell(JSON.stringify(body))}`;
  return [["curl", curl], ["Python", python(model, url, body, headers)], ["JavaScript", javaScript(model, url, body, headers)]];
}

function python(model, url, body, headers) {
  const given = Object.keys(headers).length ? `, headers=${asPython(headers)}` : "";
  const lines = ["import json", "from urllib.request import Request, urlopen", "",
    `body = ${asPython(body)}`,
    `request = Request(${JSON.stringify(url)}, json.dumps(body).encode()${given})`,
    "with urlopen(request) as answer:"];
  const read = model.decoupled
    ? ["    for line in answer:", '        if line.startswith(b"data:"):', "            print(json.loads(line[5:]))"]
    : ["    print(json.load(answer))"];
  return [...lines, ...read].join("\n");
}

function javaScript(model, url, body, headers) {
  const given = Object.keys(headers).length ? `\n  headers: ${JSON.stringify(headers)},` : "";
  const call = `const answer = await fetch(${JSON.stringify(url)}, {\n  method: "POST",${given}\n  body: JSON.stringify(${JSON.stringify(body)}),\n});`;
  const read = model.decoupled
    ? "const texts = answer.body.pipeThrough(new TextDecoderStream());\nfor await (const text of texts) console.log(text);"
    : "console.log(await answer.json());";
  return `${call}\n${read}`;
}
