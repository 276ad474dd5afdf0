// An agent of two calls that is recorded by OpenTelemetry's exporter, or replayed from the replay service:
// node agent.js record | replay RUN PROTO ENDPOINT. Both print what the agent answers.
"use strict";
const { Divergence, RecordedRun, ReplayedRun } = require("./recorder.ts");
const { Service } = require("./service.js");

const PROMPT = process.env.PROMPT ?? "Which order is late? 🙂";
const APP = "node-agent";

async function ask(path, request) {
  const answer = await fetch(`${process.env.PROVIDER}/${path}`, { method: "POST", body: request });
  if (!answer.ok) throw new Error(`the provider answers ${answer.status}`);
  return answer.text();
}

async function agent(run) {
  const prompt = JSON.stringify({ model: "small", temperature: 0.7, messages: [{ role: "user", content: PROMPT }] });
  const thought = await run.call({ kind: "llm", name: "chat", effect: "read" }, prompt, () => ask("chat", prompt));
  const order = JSON.stringify({ arguments: JSON.parse(thought) });
  const refund = { kind: "tool", name: "refund", effect: "irreversible", callId: "call_1" };
  const done = await run.call(refund, order, () => ask("refund", order));
  process.stdout.write(`${thought}\n${done}\n`);
}

async function record() {
  const { NodeTracerProvider, BatchSpanProcessor } = require("@opentelemetry/sdk-trace-node");
  const { OTLPTraceExporter } = require("@opentelemetry/exporter-trace-otlp-proto");
  const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
  const run = new RecordedRun(provider.getTracer("spanreplay-node-test"), APP);
  let outcome = "error";
  try {
    await agent(run);
    outcome = "ok";
  } finally {
    run.end(outcome);
    await provider.shutdown();
    console.error(run.runId);
  }
}

async function replay(runId, proto, endpoint) {
  const service = new Service(proto, endpoint);
  const { calls } = await service.load(runId);
  const run = new ReplayedRun(calls);
  let divergence = null;
  try {
    await agent(run);
  } catch (error) {
    if (!(error instanceof Divergence)) throw error;
    divergence = { kind: error.kind, call: error.call, message: error.message };
  }
  const missing = run.missing();
  const isIdentical = !divergence && !missing.length && !run.moved.length;
  const report = { verdict: isIdentical ? "identical" : "diverged", divergence, missing, moved: run.moved };
  await service.call("Replay/ReportReplay", { run_id: runId, verdict: report.verdict, report: JSON.stringify(report) });
  service.close();
  console.error(JSON.stringify(report));
  process.exitCode = isIdentical ? 0 : 3;
}

const [, , mode, ...rest] = process.argv;
(mode === "record" ? record() : replay(...rest)).catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
