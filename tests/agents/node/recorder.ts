// What an SDK in TypeScript needs to record runs and to replay them, without any code of spanreplay. See
// docs/other-languages.md: the contract of spans, the keyspec request/1, and the steps by which a call is resolved.
// Node runs this file as it is: it removes the types.
import type { Attributes, Span, Tracer } from "@opentelemetry/api";
const { createHash, randomBytes } = require("node:crypto") as typeof import("node:crypto");
const { context, trace } = require("@opentelemetry/api") as typeof import("@opentelemetry/api");

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

interface Boundary {
  kind: string;
  name: string;
  effect?: string;
  lane?: string;
  callId?: string;
}

// A call of the wire, as far as a replay needs it
interface Call {
  seq: number;
  kind: string;
  name: string;
  lane: string;
  index: number;
  key: string;
  call_id: string;
  request: string;
  response: string;
  outcome: string;
}

interface Answer {
  call: number;
  outcome: string;
  response: string;
}

function canonical(value: Json): string {
  if (typeof value === "string") return JSON.stringify(value.normalize("NFC"));
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.entries(value).map(([name, each]): [string, Json] => [name.normalize("NFC"), each]);
  members.sort(([a], [b]) => (a < b ? -1 : 1)); // by UTF-16 code units, as RFC 8785 orders names
  return `{${members.map(([name, each]) => `${JSON.stringify(name)}:${canonical(each)}`).join(",")}}`;
}

function requestKey(kind: string, name: string, request: string): string {
  const text = canonical({ kind, name, request: JSON.parse(request) as Json });
  return createHash("sha256").update(text).digest("hex");
}

function newRunId(): string {
  const id = randomBytes(16);
  id.writeUIntBE(Date.now(), 0, 6);
  id.writeUInt8(0x70 | (id.readUInt8(6) & 0x0f), 6);
  id.writeUInt8(0x80 | (id.readUInt8(8) & 0x3f), 8);
  return id.toString("hex");
}

// Places of calls: how many of this boundary its lane had before
class Places {
  #counts = new Map<string, number>();
  next(lane: string, kind: string, name: string): number {
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
  #root: Span;
  #tracer: Tracer;
  #app: string;
  constructor(tracer: Tracer, app: string) {
    this.#tracer = tracer;
    this.#app = app;
    this.#root = tracer.startSpan(app, { root: true });
  }
  #stated(attributes: Attributes): Attributes {
    const all = { schema: "1", run_id: this.runId, ...attributes };
    return Object.fromEntries(Object.entries(all).map(([name, value]) => [`spanreplay.${name}`, value]));
  }
  // `request` and the result of `make` are JSON texts
  async call(boundary: Boundary, request: string, make: () => Promise<string>): Promise<string> {
    const { kind, name, effect = "read", lane = "main", callId } = boundary;
    const at = { seq: ++this.#clock, kind, name, effect, lane, index: this.#places.next(lane, kind, name) };
    const span = this.#tracer.startSpan(name, {}, trace.setSpan(context.active(), this.#root));
    this.#calls += 1;
    span.setAttributes(this.#stated({ ...at, key: requestKey(kind, name, request), keyspec: "request/1", request }));
    if (callId) span.setAttribute("spanreplay.call_id", callId);
    let [outcome, response] = ["ok", ""];
    try {
      return (response = await make());
    } catch (error) {
      [outcome, response] = ["error", JSON.stringify({ error: String(error) })];
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
  end(outcome = "ok"): void {
    const manifest = JSON.stringify({ calls: this.#calls });
    this.#root.setAttributes(
      this.#stated({ seq: 0, kind: "run", name: this.#app, app: this.#app, outcome, env: "{}", manifest }),
    );
    this.#root.end();
  }
}

class Divergence extends Error {
  kind: string;
  call: number | null;
  constructor(kind: string, call: number | null, message: string) {
    super(message);
    this.kind = kind;
    this.call = call;
  }
}

// A run that is replayed: each call is answered from the recording, or ends the replay
class ReplayedRun {
  moved: number[] = [];
  #places = new Places();
  #used = new Set<Call>();
  #calls: Call[];
  constructor(calls: Call[]) {
    this.#calls = calls;
  }
  resolve({ kind, name, lane = "main", callId = "" }: Boundary, request: string): Answer {
    const index = this.#places.next(lane, kind, name);
    const key = requestKey(kind, name, request);
    const unused = this.#calls.filter((c) => !this.#used.has(c) && c.kind === kind && c.name === name);
    const slot = unused.find((c) => c.lane === lane && c.index === index);
    const found =
      (slot?.key === key ? slot : undefined) ??
      unused.find((c) => callId !== "" && c.call_id === callId && c.key === key) ??
      this.#findElsewhere(lane, unused.filter((c) => c.key === key));
    if (!found && slot) {
      this.#used.add(slot);
      throw new Divergence("changed_call", this.#number(slot), `recorded: ${slot.request} now: ${request}`);
    }
    if (!found) throw new Divergence("extra_call", null, `${kind}:${name} was not recorded`);
    this.#used.add(found);
    return { call: this.#number(found), outcome: found.outcome, response: found.response };
  }
  // The same request elsewhere, first in this lane; not if several lanes gave different answers
  #findElsewhere(lane: string, equal: Call[]): Call | undefined {
    const own = equal.find((c) => c.lane === lane);
    const found = own ?? equal[0];
    if (!found) return undefined;
    const isSame = (c: Call) => c.outcome === found.outcome && c.response === found.response;
    if (!own && !equal.every((c) => c.lane === found.lane || isSame(c))) {
      throw new Divergence("ambiguous", this.#number(found), `${found.kind}:${found.name} matches calls of several lanes`);
    }
    this.moved.push(this.#number(found));
    return found;
  }
  async call(boundary: Boundary, request: string): Promise<string> {
    const { outcome, response } = this.resolve(boundary, request);
    if (outcome !== "ok") throw new Error((JSON.parse(response) as { error: string }).error);
    return response;
  }
  missing(): number[] {
    return this.#calls.filter((c) => !this.#used.has(c)).map((c) => this.#number(c));
  }
  #number(call: Call): number {
    return this.#calls.indexOf(call) + 1;
  }
}

module.exports = { Divergence, RecordedRun, ReplayedRun, requestKey };
