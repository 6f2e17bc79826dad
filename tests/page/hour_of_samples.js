// SPDX-License-Identifier: Apache-2.0
// Puts made-up samples of an hour in place of the server's, and spreads its failures over it; for pictures.

const noise = (time, seed) => {
  const x = Math.sin(Math.round(time) * 12.9898 + seed * 78.233) * 43758.5453;
  return x - Math.floor(x);
};
const wave = (time, seed) => 1 + 0.2 * Math.sin(time / 560 + seed) + 0.1 * Math.sin(time / 170 + 3 * seed) + 0.06 * (noise(time, seed) - 0.5);

// Some requests fail now, and some have failed half an hour ago.
const isFailing = (age) => age < 95 || (age > 1700 && age < 2050);

// requests, errors, inferences, mean, p50, p95, p99, batch, waiting, running
function classify(time) {
  const rate = 180 * wave(time, 0), latency = wave(time, 1);
  return [rate, 0, rate, 6.1, 5.2 * latency, 9.4 * latency, 14 * latency, 3.2 * wave(time, 0), Math.round(1.6 * wave(time, 3)), 2];
}

function price(time, age) {
  const rate = 60 * wave(time, 2), errors = isFailing(age) ? 2.5 * noise(time, 5) : 0, latency = wave(time, 3);
  return [rate, errors, rate - errors, 2.6, 2.1 * latency, 4.2 * latency, 7.7 * latency, 1, 0, 1];
}

function story(time) {
  const rate = 2.4 * wave(time, 4), latency = wave(time, 5);
  return [rate, 0, rate, 1400, 1300 * latency, 1900 * latency, 2300 * latency, 1, 0, 3];
}

function streams(time) {
  const first = wave(time, 7), between = wave(time, 9);
  return [62 * first, 118 * first, 164 * first, 24 * between, 41 * between, 66 * between];
}

function whole(time, age, models) {
  const sum = (at) => models.reduce((all, values) => all + values[at], 0);
  const refused = isFailing(age) ? 0.2 : 0;
  const latencies = models[0].slice(4, 7).map((value) => 0.9 * value);
  return [sum(0) + refused, sum(1) + refused, sum(2), 5.2, ...latencies, 1.9 * wave(time, 0), sum(8), sum(9)];
}

const numbers = {}, ask = window.fetch;
let end = 0;

function sample(time, apart) {
  const age = end - time, models = { classify: classify(time), price: price(time, age), story: story(time) };
  const records = [[0, ...whole(time, age, Object.values(models))]];
  for (const [name, values] of Object.entries(models)) if (name in numbers) records.push([numbers[name], ...values]);
  const ofStreams = [[0, ...streams(time)]];
  if ("story" in numbers) ofStreams.push([numbers.story, ...streams(time)]);
  return [time, apart, 61e6 + 2e6 * wave(time, 11), records, ofStreams];
}

function samples(length, apart) {
  return Array.from({ length: length / apart }, (_, at) => sample(end - length + (at + 1) * apart, apart));
}

const COUNTS = { classify: [648210, 10], price: [215044, 37], story: [8630, 0] }; // answered, failed

function withHour(answer) {
  const isFirst = !end;
  end = answer.now.time;
  for (const model of answer.now.models) [model.ok, model.failed] = COUNTS[model.name] || [0, 0];
  for (const row of answer.models) { numbers[row[2]] = row[0]; row[4] = 0; }
  answer.fine = isFirst ? samples(300, 2) : [sample(end, 2)];
  answer.coarse = isFirst ? samples(3600, 10).slice(0, -1) : [];
  return answer;
}

function withAges(answer) {
  answer.groups.forEach((group, at) => {
    group.last -= 40 * at;
    group.first -= 1400 + 200 * at;
  });
  return answer;
}

window.fetch = async (url, ...rest) => {
  const response = await ask(url, ...rest);
  if (String(url).includes("/samples?")) return Response.json(withHour(await response.json()));
  if (String(url).endsWith("/failures")) return Response.json(withAges(await response.json()));
  return response;
};
