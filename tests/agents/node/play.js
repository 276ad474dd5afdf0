// Plays the cases of `spanreplay conformance --cases` and prints what came of each:
// node play.js CASES PROTO ENDPOINT OTLP_ENDPOINT
"use strict";
const { readFileSync } = require("node:fs");
const { Divergence, ReplayedRun, requestKey } = require("./recorder.ts");
const { Service } = require("./service.js");

async function play([file, proto, endpoint, otlp]) {
  const cases = JSON.parse(readFileSync(file, "utf8"));
  const headers = { "content-type": "application/json" };
  const stored = await fetch(`${otlp}/v1/traces`, { method: "POST", headers, body: JSON.stringify(cases.export) });
  if (!stored.ok) throw new Error(`the collector answers ${stored.status}`);
  const keys = cases.keys.map((each) => requestKey(each.kind, each.boundary, each.request));
  const wire = [];
  const plain = new Service(proto, endpoint, { defaults: false, oneofs: false });
  for (const each of cases.wire) {
    try {
      wire.push({ messages: await plain.call(each.method, each.request) });
    } catch (error) {
      wire.push({ error: { code: error.code, details: error.metadata.get("grpc-status-details-bin")[0].toString("base64") } });
    }
  }
  plain.close();
  const service = new Service(proto, endpoint);
  const replays = [];
  for (const each of cases.replays) {
    const run = new ReplayedRun((await service.load(each.run_id)).calls);
    const answers = each.calls.map((call) => {
      try {
        return run.resolve({ ...call, callId: call.call_id }, call.request);
      } catch (error) {
        if (!(error instanceof Divergence)) throw error;
        return { divergence: error.kind, call: error.call };
      }
    });
    replays.push({ answers, missing: run.missing(), moved: run.moved });
  }
  service.close();
  process.stdout.write(JSON.stringify({ keys, wire, replays }));
}

play(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
