// What an SDK for Node.js needs to record runs and to replay them, without any code of spanreplay. See
// docs/other-languages.md: the contract of spans, the keyspec request/1, and the steps by which a call is resolved.
"use strict";
const { createHash, randomBytes } = require("node:crypto");
const { context, trace } = require("@opentelemetry/api");

function canonical(value) {
  if (typeof value === "string") return JSON.stringify(value.normalize("NFC"));
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.entries(value).map(([name, each]) => [name.normalize("NFC"), each]);
  members.sort(([a], [b]) => (a < b ? -1 : 1)); // by UTF-16 code units, as RFC 8785 orders names
  return `{${members.map(([name, each]) => `${JSON.stringify(name)}:${canonical(each)}`).join(",")}}`;
}

function requestKey(kind, name, request) {
  return createHash("sha256").update(canonical({ kind, name, request: JSON.parse(request) })).digest("hex");
}

function newRunId() {
  const id = randomBytes(16);
  id.writeUIntBE(Date.now(), 0, 6);
  id[6] = 0x70 | (id[6] & 0x0f);
  id[8] = 0x80 | (id[8] & 0x3f);
  return id.toString("hex");
}

// Places of calls: how many of this boundary its lane had before
class Places {
  #counts = new Map();
  next(lane, kind, name) {
    const place = JSON.stringify([lane, kind, name]);
    const index = this.#counts.get(place) ?? 0;
    this.#counts.set(place, index + 1);
    return index;
  }
}

// A run that is recorded: each call is made, and becomes a span
class RecordedRun {
  runId = newRunId();
  #clock = 0;
  #calls = 0;
  #places = new Places();
  #root;
  #tracer;
  #app;
  constructor(tracer, app) {
    [this.#tracer, this.#app] = [tracer, app];
    this.#root = tracer.startSpan(app, { root: true });
  }
  #stated(attributes) {
    const all = { schema: "1", run_id: this.runId, ...attributes };
    return Object.fromEntries(Object.entries(all).map(([name, value]) => [`spanreplay.${name}`, value]));
  }
  // `request` and the result of `make` are JSON texts
  async call({ kind, name, effect, lane = "main", callId }, request, make) {
    const at = { seq: ++this.#clock, kind, name, effect, lane, index: this.#places.next(lane, kind, name) };
    const span = this.#tracer.startSpan(name, {}, trace.setSpan(context.active(), this.#root));
    this.#calls += 1;
    span.setAttributes(this.#stated({ ...at, key: requestKey(kind, name, request), keyspec: "request/1", request }));
    if (callId) span.setAttribute("spanreplay.call_id", callId);
    let [outcome, response] = ["ok", ""];
    try {
      return (response = await make());
    } catch (error) {
      [outcome, response] = ["error", JSON.stringify({ error: String(error.message) })];
      throw error;
    } finally {
      span.setAttributes({
        "spanreplay.outcome": outcome,
        "spanreplay.response": response,
        "spanreplay.end_seq": ++this.#clock,
      });
      span.end();
    }
  }
  end(outcome = "ok") {
    const manifest = JSON.stringify({ calls: this.#calls });
    this.#root.setAttributes(
      this.#stated({ seq: 0, kind: "run", name: this.#app, app: this.#app, outcome, env: "{}", manifest }),
    );
    this.#root.end();
  }
}

class Divergence extends Error {
  constructor(kind, call, message) {
    super(message);
    [this.kind, this.call] = [kind, call];
  }
}

// A run that is replayed: each call is answered from the recording, or ends the replay
class ReplayedRun {
  moved = [];
  #places = new Places();
  #used = new Set();
  #calls;
  constructor(calls) {
    this.#calls = calls;
  }
  resolve({ kind, name, lane = "main", callId = "" }, request) {
    const index = this.#places.next(lane, kind, name);
    const key = requestKey(kind, name, request);
    const unused = this.#calls.filter((c) => !this.#used.has(c.seq) && c.kind === kind && c.name === name);
    const slot = unused.find((c) => c.lane === lane && c.index === index);
    // (1) The same place and key. (2) The provider's id of the call. (3) The same request elsewhere, this lane first.
    let found = slot?.key === key ? slot : undefined;
    found ??= unused.find((c) => callId && c.call_id === callId && c.key === key);
    if (!found) {
      const equal = unused.filter((c) => c.key === key);
      found = equal.find((c) => c.lane === lane) ?? equal[0];
      const isSame = (c) => c.outcome === found.outcome && c.response === found.response;
      if (found && found.lane !== lane && !equal.filter((c) => c.lane !== found.lane).every(isSame)) {
        throw new Divergence("ambiguous", this.#number(found), `${kind}:${name} matches calls of several lanes`);
      }
      if (found) this.moved.push(this.#number(found));
    }
    if (!found && slot) {
      this.#used.add(slot.seq);
      throw new Divergence("changed_call", this.#number(slot), `recorded: ${slot.request} now: ${request}`);
    }
    if (!found) throw new Divergence("extra_call", null, `${kind}:${name} was not recorded`);
    this.#used.add(found.seq);
    return { call: this.#number(found), outcome: found.outcome, response: found.response };
  }
  async call(boundary, request) {
    const { outcome, response } = this.resolve(boundary, request);
    if (outcome !== "ok") throw new Error(JSON.parse(response).error);
    return response;
  }
  missing() {
    return this.#calls.filter((c) => !this.#used.has(c.seq)).map((c) => this.#number(c));
  }
  #number(call) {
    return this.#calls.indexOf(call) + 1;
  }
}

module.exports = { Divergence, RecordedRun, ReplayedRun, requestKey };
